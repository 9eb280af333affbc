#!/usr/bin/env bash
#
# Runs the commands in the pages of the project: each block of code whose language is sh.
#
#   dev/book/commands.sh PROGRAMS [PAGE...]
#
# PROGRAMS is the folder with the programs smc and interop; without pages it is all of them.
#
# What follows the language says how a block is run:
#
#   ```sh                 all of it, which has to succeed
#   ```sh runs on         each command by itself, which has to run until it is ended
#   ```sh parsed: why     only as far as smc and interop, without a path, look at their arguments
#   ```sh skipped: why    not at all
#
# A block is run in a folder that looks like the project, with a /run, network interfaces and
# mounts of its own. The programs are there, so cargo and ./test.sh only check their arguments.
#
# The status is 77 where such a place cannot be made.

set -euo pipefail
readonly SKIPPED=77 LIMIT=300
PROJECT=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
export PROJECT

main() {
    local pages=("${@:2}") ran=0 parsed=0 skipped=0 failed=0 place how block
    PROGRAMS=$(realpath "$1")
    export PATH=$PROGRAMS:$PATH
    cd "$PROJECT"
    ((${#pages[@]} > 0)) || mapfile -t pages < <(
        git ls-files -co --exclude-standard -- '*.md' 2>/dev/null ||
            find . -name target -prune -o -name '*.md' -printf '%P\n'
    )

    # Not local: the trap is for the end of the script.
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    if ! in_place true 2>"$scratch/why"; then
        echo "skipped: no namespaces can be had here: $(tail -n 1 "$scratch/why")"
        return "$SKIPPED"
    fi

    blocks_of "${pages[@]}" >"$scratch/blocks"
    while IFS=$'\t' read -r place block how; do
        case $how in
        "sh skipped: "?*)
            skipped=$((skipped + 1))
            echo "skipped: $place: ${how#*: }"
            ;;
        sh | "sh runs on" | "sh parsed: "?*)
            if ! run "$how" "$block" >"$scratch/out" 2>&1; then
                failed=$((failed + 1))
                echo "$place failed:"
                cat "$block" "$scratch/out"
            elif [[ $how == "sh parsed"* ]]; then
                parsed=$((parsed + 1))
                echo "skipped: $place: ${how#*: }; its arguments are right"
            else
                ran=$((ran + 1))
            fi
            ;;
        *)
            failed=$((failed + 1))
            echo "$place: a block of code that does not say how it is run: \"$how\""
            ;;
        esac
    done <"$scratch/blocks"
    echo "blocks of commands: $ran ran, $parsed were parsed, $skipped skipped, $failed failed"
    ((failed == 0 && ran > 0))
}

# PAGE...: a line for each block that may have commands: where it is, the file with its content, and
# what follows its fence.
blocks_of() {
    awk -v scratch="$scratch" '
        function found(how) { printf "%s:%d\t%s\t%s\n", FILENAME, FNR, block, how }
        FNR == 1 { fenced = 0 }
        sub(/^ *```/, "") {
            fenced = !fenced
            block = scratch "/" ++count
            if (fenced && !/^(rust|toml|ini|xml|diff|text)(,|$)/) found($0)
            next
        }
        fenced { print >block }
        # By indentation there are synopses, and no commands to be copied.
        !fenced && /^    (\$ |sudo |cargo |\.\/|\.ci\/|[A-Z_]+=)/ { found("") }
    ' "$@"
}

# HOW BLOCK
run() (
    local copy=$scratch/project scenario
    rm -rf "$copy"
    mkdir -p "$copy/target/interop/captures"
    find "$PROJECT" -mindepth 1 -maxdepth 1 ! -name target -exec ln -s -t "$copy" {} +
    ln -s "$PROGRAMS" "$copy/target/debug"
    ln -s "$PROGRAMS" "$copy/target/release"
    # As runs in virtual machines leave them.
    for scenario in echo many-50; do
        ln -s "$PROJECT/smc-wire/tests/vectors/b2-five-concurrent.pcap" \
            "$copy/target/interop/captures/$scenario-ours-kernel.pcap"
    done
    cd "$copy"
    case $1 in
    "sh runs on") in_place bash -c 'run_on "$1"' - "$2" ;;
    "sh parsed"*) HELP=--help in_place bash -euo pipefail "$2" ;;
    *) in_place bash -euo pipefail "$2" ;;
    esac
)

# COMMAND...: with namespaces of its own, which end with all processes in them.
in_place() {
    local namespaces=(--mount --net --pid --fork --kill-child --mount-proc)
    ((EUID == 0)) || namespaces+=(--user --map-root-user)
    timeout --kill-after=10 "$LIMIT" unshare "${namespaces[@]}" bash -c '
        set -e
        mount -t tmpfs none /run
        ip link set lo up
        "$@"' - "$@" </dev/null
}

# BLOCK: whether each of its commands still runs after two seconds.
run_on() {
    local command commands=() processes=() i ended=0
    mapfile -t commands < <(sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' "$1")
    for command in "${commands[@]}"; do
        bash -c "$command" &
        processes+=($!)
    done
    sleep 2
    for i in "${!commands[@]}"; do
        kill -0 "${processes[i]}" 2>/dev/null || { echo "has ended: ${commands[i]}" && ended=1; }
    done
    return "$ended"
}

# What `cargo run`, `build`, `test` and `bench` are given has to exist. Steps build it, and run tests.
cargo() {
    local verb=$1 package='' feature features='' test tests='' folder
    shift
    while (($# > 0)) && [[ $1 != -- ]]; do
        case $1 in
        --release) ;;
        -p) package=$2 && shift ;;
        --features) features+=" ${2//,/ }" && shift ;;
        --test) tests+=" $2" && shift ;;
        *) [[ $verb == test && $1 != -* ]] || { echo "cargo $verb: $1?" && return 2; } ;;
        esac
        shift
    done
    folder=$(command cargo pkgid --offline --manifest-path "$PROJECT/Cargo.toml" -p "$package") || return
    folder=${folder#*file://} folder=${folder%#*}
    for feature in $features; do
        grep -q "^$feature = " "$folder/Cargo.toml" || { echo "$package: no feature $feature" && return 1; }
    done
    for test in $tests; do
        [[ -e $folder/tests/$test.rs || -e $folder/tests/$test/main.rs ]] ||
            { echo "$package: no test $test" && return 1; }
    done
    case $verb in
    run) "$(sed -n '/^\[\[bin\]\]/,/^name/s/^name = "\(.*\)"/\1/p' "$folder/Cargo.toml")" "${@:2}" ;;
    build | test | bench) ;;
    *) echo "cargo $verb?" && return 2 ;;
    esac
}

# Measures as short as can be: that it does is what there is to see.
smc() {
    local argument arguments=()
    case ${1:-} in
    demo) set -- "$@" --rounds 1 ;;
    bench)
        while (($# > 0)); do
            argument=$1 && shift
            case $argument in
            --rounds | --time) shift ;;
            *) arguments+=("$argument") ;;
            esac
        done
        set -- "${arguments[@]}" --rounds 1 --time 50 --connections 2 --clients 2 --open 10
        ;;
    esac
    command smc "$@" ${HELP:-}
}

# Its help comes when all arguments before have been found right.
interop() {
    command interop "$@" ${HELP:-}
}

sudo() {
    "$@"
}

export -f run_on cargo smc interop sudo
export SMC_DRY_RUN=1

main "$@"
