# Builds all targets and sets `binaries`, the folder that they are in. Sourced by the other scripts.
#
# The instrumentation flags are stable ones; only sanitizers, which these targets without unsafe code
# can do without, would need a nightly toolchain.

host=$(rustc --print host-tuple)
target_dir=${CARGO_TARGET_DIR:-target}
binaries=$target_dir/$host/release
# With --target the flags do not reach build scripts, which could not be linked with them.
RUSTFLAGS="-Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares \
--cfg fuzzing" \
    cargo build --quiet --release --locked --target "$host" --target-dir "$target_dir"

# Sockets and memory of targets, in memory if possible. The folder is removed at the end.
work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -m 700 "$work/tmp" "$work/run"
export TMPDIR=$work/tmp SMC_RUNTIME_DIR=$work/run
