#!/usr/bin/env bash
#
# Runs the commands in the pages.
#
#   dev/book/commands.sh PROGRAMS     with the programs of this folder in place of `cargo run`
#
# A block of the language `sh` is run as it is, in a shell of its own that ends at the first error.
# What follows the language says otherwise: `run-by-STEP`, a step of test.sh that runs the same
# programs, or `not-run-REASON`.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

programs=$(realpath "$1")
export PATH="$programs:$PATH"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
readonly LIMIT=300

main() {
    local failed=0 page steps number info
    steps=$(./test.sh --list)
    while read -r page; do
        while IFS=: read -r number info; do
            handle "$page" "$number" "${info#*sh}" "$steps" || failed=1
        done < <(grep -n '^```sh' "$page")
    done < <(sed -n 's/.*](\(.*\.md\)).*/\1/p' dev/book/SUMMARY.md)
    return "$failed"
}

# PAGE LINE ATTRIBUTES STEPS
handle() {
    local at="$1:$2" attributes=${3# } block
    case $attributes in
    not-run-?*) echo "skipped: $at: ${attributes#not-run-}" ;;
    run-by-?*)
        if ! grep -qw -- "${attributes#run-by-}" <<<"$4"; then
            echo "$at: no step ${attributes#run-by-}"
            return 1
        fi
        ;;
    '')
        block=$(awk -v from="$2" 'NR > from && /^```/ { exit } NR > from' "$1" | by_programs)
        if ! timeout "$LIMIT" bash -euo pipefail -c "$block" </dev/null >"$log" 2>&1; then
            echo "$at: failed"
            tail -20 "$log"
            return 1
        fi
        echo "$at: passed"
        ;;
    *)
        echo "$at: unknown attribute $attributes"
        return 1
        ;;
    esac
}

# The programs are built already, with all features.
by_programs() {
    sed -E 's/cargo run( --release)? -p smc-(tools|interop)( --features [a-z,]+)? --/\2/; s/^tools /smc /'
}

main
