#!/bin/sh
# Runs every fuzz target over its regressions, and then for a few seconds over the kept corpus; fails
# on the first crash. long.sh runs them for hours.
#
#   dev/fuzz/smoke.sh [seconds per target]
#
# Needs a stable Rust toolchain and a C++ compiler, nothing else. `cargo fuzz run -s none TARGET`
# does the same.
#
# To renew the corpus of the wire format after changes to the captures:
#   SMC_WIRE_WRITE_CORPUS=1 cargo test -p smc-wire --test fuzz_corpus
# To renew the others:
#   dev/fuzz/long.sh --hours 1 --keep-seeds
set -eu

seconds=${1:-2}
cd "$(dirname "$0")"
# Seconds are too short for what optimisation takes.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
. ./build.sh

for source in fuzz_targets/*.rs; do
    target=$(basename "$source" .rs)
    mkdir -p "$work/$target" "artifacts/$target"
    set --
    for file in "regressions/$target"/*; do
        [ ! -f "$file" ] || set -- "$@" "$file"
    done
    # New inputs go to the first directory; the kept corpus is only read.
    if { [ $# -eq 0 ] || "$binaries/$target" "$@"; } >"$work/$target.log" 2>&1 &&
        "$binaries/$target" -max_total_time="$seconds" -max_len=8192 -timeout=20 \
            -artifact_prefix="artifacts/$target/" "$work/$target" "corpus/$target" \
            >>"$work/$target.log" 2>&1
    then
        echo "$target: $# regressions, $(sed -n 's/^Done //p' "$work/$target.log")"
    else
        tail -n 60 "$work/$target.log"
        echo "$target: crashed, see dev/fuzz/artifacts/$target" >&2
        exit 1
    fi
done
