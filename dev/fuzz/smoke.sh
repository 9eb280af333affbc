#!/bin/sh
# Runs every fuzz target for a few seconds over the kept corpus; fails on the first crash.
#
#   dev/fuzz/smoke.sh [seconds per target]
#
# Needs a stable Rust toolchain and a C++ compiler, nothing else. `cargo fuzz run -s none TARGET`
# does the same for longer runs. The instrumentation flags are stable ones; only sanitizers, which
# these targets without unsafe code can do without, would need a nightly toolchain.
#
# To renew the corpus after changes to the captures:
#   SMC_WIRE_WRITE_CORPUS=1 cargo test -p smc-wire --test fuzz_corpus
set -eu

seconds=${1:-10}
cd "$(dirname "$0")"

host=$(rustc -vV | sed -n 's/^host: //p')
target_dir=${CARGO_TARGET_DIR:-target}
# With --target the flags do not reach build scripts, which could not be linked with them.
RUSTFLAGS="-Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares \
-Ccodegen-units=1 --cfg fuzzing" \
    cargo build --quiet --release --locked --target "$host" --target-dir "$target_dir"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for source in fuzz_targets/*.rs; do
    target=$(basename "$source" .rs)
    binary=$target_dir/$host/release/$target
    mkdir -p "$work/$target" "artifacts/$target"
    # New inputs go to the first directory; the kept corpus is only read.
    if "$binary" -max_total_time="$seconds" -max_len=8192 -timeout=5 \
        -artifact_prefix="artifacts/$target/" "$work/$target" "corpus/$target" \
        >"$work/$target.log" 2>&1
    then
        sed -n "s/^Done /$target: /p" "$work/$target.log"
    else
        tail -n 60 "$work/$target.log"
        echo "$target: crashed, see dev/fuzz/artifacts/$target" >&2
        exit 1
    fi
done
