#!/bin/sh
# Prints how many lines of the wire format and of the protocol machines the corpora cover, and how
# many with the unit tests as well.
#
#   dev/fuzz/coverage.sh
#
# Needs the component llvm-tools of the toolchain: rustup component add llvm-tools. It reads the kept
# corpus, regressions, and what long.sh has collected in dev/fuzz/target/corpus.
set -eu

cd "$(dirname "$0")"
host=$(rustc --print host-tuple)
tools=$(rustc --print sysroot)/lib/rustlib/$host/bin
target_dir=${CARGO_TARGET_DIR:-$PWD/target}
profiles=$(mktemp -d)
trap 'rm -rf "$profiles"' EXIT
mkdir -m 700 "$profiles/tmp" "$profiles/run"
export TMPDIR=$profiles/tmp SMC_RUNTIME_DIR=$profiles/run

export RUSTFLAGS="-Cinstrument-coverage --cfg fuzzing" CARGO_INCREMENTAL=0
cargo build --quiet --release --locked --target "$host" --target-dir "$target_dir/coverage"
objects=''
for source in fuzz_targets/*.rs; do
    target=$(basename "$source" .rs)
    binary=$target_dir/coverage/$host/release/$target
    # The first one is an argument of its own.
    objects="$objects${objects:+ -object }$binary"
    for dir in "corpus/$target" "regressions/$target" "$target_dir/corpus/$target"; do
        [ -d "$dir" ] || continue
        LLVM_PROFILE_FILE=$profiles/fuzz-%m.profraw "$binary" -runs=0 "$dir" \
            >"$profiles/log" 2>&1 || { cat "$profiles/log" && exit 1; }
    done
done

of_targets=$objects

# Two crates of the workspace around this one.
tests() {
    (cd ../.. && RUSTFLAGS=-Cinstrument-coverage LLVM_PROFILE_FILE=$profiles/tests-%m.profraw \
        cargo test --quiet --locked -p smc-wire -p smc-core --target-dir "$target_dir/tests" "$@")
}
tests >"$profiles/log" 2>&1 || { tail -n 60 "$profiles/log" && exit 1; }
for binary in $(tests --no-run --message-format=json 2>"$profiles/log" |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
do
    objects="$objects -object $binary"
done

# NAME OBJECTS PROFILE...: the lines of the report about folders.
report() {
    name=$1 programs=$2
    shift 2
    "$tools/llvm-profdata" merge -sparse -o "$profiles/$name.profdata" "$@"
    for folder in smc-wire/src smc-core/src/proto; do
        "$tools/llvm-cov" export $programs -summary-only \
            -instr-profile "$profiles/$name.profdata" -ignore-filename-regex '/tests(/|\.rs)' \
            -sources "$(cd ../.. && pwd)/$folder" |
            sed 's/.*"totals":{//; s/.*"lines":{"count":\([0-9]*\),"covered":\([0-9]*\),.*/\1 \2/' |
            awk -v name="$name" -v folder="$folder" \
                '{ printf "%-12s %-20s %d of %d lines, %.1f %%\n", name, folder, $2, $1, 100 * $2 / $1 }'
    done
}

report fuzz "$of_targets" "$profiles"/fuzz-*.profraw
report fuzz+tests "$objects" "$profiles"/*.profraw
