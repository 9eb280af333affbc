#!/usr/bin/env bash
#
# All checks of the project, cheap ones first.
#
#   ./test.sh                  every step
#   ./test.sh fmt clippy       only these
#   ./test.sh --list           the steps and what they are for
#   ./test.sh --keep-going     do not stop at the first failure
#
# As root the step `setup` installs what is missing. As anybody else it says what is missing and
# how to install it; nothing outside the clone is touched. A check that this machine cannot do is
# reported as "skipped: why" and counted as skipped, never as passed.
#
# The last line counts steps: "N passed, M failed", with ", K skipped" where there are any.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly DENY_VERSION=0.20.2
readonly GUNGRAUN_VERSION=0.20.0
readonly MSRV=1.85
readonly MODEL_SEEDS=${SMC_MODEL_SEEDS:-10000}
readonly LOOM_PREEMPTIONS=${SMC_LOOM_PREEMPTIONS:-4}
readonly KILL_ROUNDS=${SMC_KILL_ROUNDS:-200}
readonly DEMO_BYTES=67108864

# Answer of a step that could not be done here.
readonly SKIPPED=77

readonly TARGET=${CARGO_TARGET_DIR:-target}
readonly TOOLS=$TARGET/tools
export PATH="$PWD/$TOOLS/bin:$TOOLS/bin:$HOME/.cargo/bin:$PATH"
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
export RUST_BACKTRACE=${RUST_BACKTRACE:-1}
export INSTA_UPDATE=no

locked=()
if [[ -n ${CI:-} ]]; then
    # A fresh clone builds once: neither incremental state nor full debug information pays.
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=line-tables-only
    locked=(--locked)
fi

# The workspace with everything on: one feature set for all tests, so that nothing builds twice.
# Without SMC-R on hardware, which takes more to build and has a step of its own; the features are
# read from the manifests, at the end of this file.
ALL=(--workspace --exclude smc-transport-rdma)
# The same in the release profile, without what `smc bench` is compared with, which takes long.
RELEASE=(--release "${ALL[@]}")

# SMC-R on hardware, and the command with it.
RDMA=(-p smc-transport-rdma -p smc-tools --features smc-tools/rdma)

# Linking for the last bit of speed takes minutes and finds nothing; only where speed is counted it
# is as users have it.
export CARGO_PROFILE_RELEASE_LTO=off

# ---------------------------------------------------------------------------------------------
# Steps
# ---------------------------------------------------------------------------------------------

STEPS=()
declare -A ABOUT=()

# NAME DESCRIPTION: the function step_NAME is a step.
step() {
    STEPS+=("$1")
    ABOUT[$1]=$2
}

step setup "what the other steps need: compiler, rustfmt, clippy, cargo-deny"
step_setup() {
    # Command and the Debian package that has it.
    local needs=(cc:gcc c++:g++ git:git timeout:coreutils unshare:util-linux ip:iproute2
        valgrind:valgrind)
    local need packages=() failed=0
    for need in "${needs[@]}"; do
        command -v "${need%%:*}" >/dev/null || packages+=("${need##*:}")
    done
    if ((${#packages[@]} > 0)); then
        if ((EUID == 0)) && command -v apt-get >/dev/null; then
            export DEBIAN_FRONTEND=noninteractive
            apt-get update -q && apt-get install -q -y --no-install-recommends "${packages[@]}"
        else
            echo "missing; as root: apt-get install ${packages[*]}"
            failed=1
        fi
    fi

    if ! command -v cargo >/dev/null; then
        echo "missing: a stable Rust toolchain, $MSRV or later (https://rustup.rs)"
        return 1
    fi
    local component
    for component in rustfmt clippy; do
        cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 && continue
        if ! rustup component add "$component"; then
            echo "missing: rustup component add $component"
            failed=1
        fi
    done

    # Two to three minutes each on two cores, once.
    has_deny || install_tool "cargo-deny@$DENY_VERSION" || failed=1
    has_gungraun || install_tool "gungraun-runner@$GUNGRAUN_VERSION" || failed=1
    quiet 300 cargo fetch "${locked[@]}" || failed=1
    return "$failed"
}

step fmt "formatting"
step_fmt() {
    cargo fmt --all --check
    local manifest
    for manifest in */fuzz/Cargo.toml; do
        [[ ! -e $manifest ]] || cargo fmt --manifest-path "$manifest" --check
    done
}

step rules "rules of CONTRIBUTING.md that a text search can check"
step_rules() {
    local failed=0
    # The brackets keep the patterns from matching this file.
    no_match 'unfinished work' '\b(tod[o]|unimplemente[d]|db[g])!|\b(TOD[O]|FIXM[E]|XX[X])\b' . \
        || failed=1
    no_match "a path of somebody's machine" \
        '(^|[^A-Za-z0-9_.-])/(wor[k]|roo[t]|hom[e]|User[s])/' . || failed=1
    no_match 'input, output or time in the sans-I/O part' \
        '^[^/]*(std::net::(Tcp|Udp)|std::(io|fs|thread|os)\b|crate::io\b|\.await\b|::now\(\))' \
        smc-core/src/proto '/tests(\.rs|/)' || failed=1
    local file
    while IFS= read -r file; do
        case $file in
        smc-core/src/mem/* | smc-transport-loop/src/region.rs) ;;
        smc-transport-ism/src/region.rs) ;;
        smc-transport-rdma/src/verbs.rs) ;;
        # System calls that no crate wraps.
        smc-core/src/io/negotiate/option/bpf.rs) ;;
        # The promise about peers that reading and writing in place take.
        examples/src/bin/zero_copy_*.rs | smc-tools/src/bench/transport/trust.rs) ;;
        benches/hot.rs | smc-testkit/tests/model*.rs | smc-transport-loop/tests/inplace.rs) ;;
        *) echo "$file: unsafe code is not allowed here" && failed=1 ;;
        esac
    done < <(sources . | grep '\.rs$' |
        xargs -r grep -lE '^[^/]*\bunsaf[e] *(\{|fn|impl|extern)' || true)
    return "$failed"
}

step deny "licences, sources, banned crates and advisories of the dependencies"
step_deny() {
    if ! has_deny; then
        echo "skipped: cargo-deny $DENY_VERSION is not installed (./test.sh setup)"
        return "$SKIPPED"
    fi
    local check=("${locked[@]}" check --hide-inclusion-graph)
    cargo deny "${check[@]}" --allow duplicate bans licenses sources
    if timeout 60 cargo deny fetch db >/dev/null 2>&1; then
        cargo deny "${check[@]}" --disable-fetch advisories
    else
        echo "skipped: advisories, their database cannot be fetched from here"
    fi
}

step clippy "lints, all targets and features, warnings are errors"
step_clippy() {
    cargo clippy "${locked[@]}" "${ALL[@]}" --all-targets -q -- -D warnings
}

step features "every library alone: no features, then each feature by itself"
step_features() {
    local manifest crate feature
    for manifest in */Cargo.toml; do
        crate=$(basename "$(dirname "$manifest")")
        grep -q '^publish = false' "$manifest" && continue
        [[ $crate != smc-transport-rdma ]] || continue
        echo "$crate"
        cargo clippy "${locked[@]}" -q -p "$crate" --no-default-features -- -D warnings
        while IFS= read -r feature; do
            echo "$crate + $feature"
            cargo clippy "${locked[@]}" -q -p "$crate" --no-default-features \
                --features "$feature" -- -D warnings
        done < <(features_of "$manifest")
    done
}

step msrv "the declared Rust version, as far as the installed toolchains can tell"
step_msrv() {
    local manifest failed=0
    for manifest in */Cargo.toml; do
        if ! grep -q '^rust-version' "$manifest"; then
            echo "$manifest: no rust-version"
            failed=1
        fi
    done
    ((failed == 0)) || return 1
    cargo clippy "${locked[@]}" "${ALL[@]}" --lib --bins -q -- \
        -A clippy::all -D clippy::incompatible_msrv
    if rustup toolchain list 2>/dev/null | grep -q "^$MSRV"; then
        CARGO_TARGET_DIR=$TARGET/msrv cargo "+$MSRV" check "${locked[@]}" -q \
            -p smc-wire -p smc-core -p smc-transport-loop -p smc-transport-ism --all-features
    else
        echo "skipped: build with Rust $MSRV, no such toolchain here; checked by clippy only"
    fi
}

step doc "documentation, warnings are errors"
step_doc() {
    export RUSTDOCFLAGS="-D warnings"
    # Once as users see it, where a link to a private item is an error, once with everything.
    cargo doc "${locked[@]}" "${ALL[@]}" --no-deps -q
    cargo doc "${locked[@]}" "${ALL[@]}" --no-deps --document-private-items -q
}

step unit "unit tests"
step_unit() {
    verdicts 900 cargo test "${locked[@]}" "${ALL[@]}" --lib --bins -- --show-output
}

step doctest "examples in the documentation and in README.md"
step_doctest() {
    verdicts 900 cargo test "${locked[@]}" "${ALL[@]}" --doc
}

step wire "captured messages, properties and rejections of the wire format"
step_wire() {
    verdicts 600 cargo test "${locked[@]}" "${ALL[@]}" $(tests_of smc-wire) -- --show-output
}

step integration "streams, negotiation, devices and tools, each in their own processes"
step_integration() {
    local dirs=(smc-core smc-transport-loop smc-transport-ism smc-testkit smc-tools examples) names
    names=$(tests_of "${dirs[@]}" | sed -E 's/--test (conformance|model|kill)( |$)//g')
    verdicts 1200 cargo test "${locked[@]}" "${ALL[@]}" $names -- --show-output
}

step rdma "SMC-R on hardware: installs cmake and libclang as root; tests need an RDMA device"
step_rdma() {
    local packages=()
    command -v cmake >/dev/null || packages+=(cmake)
    has_libclang || packages+=(libclang-dev)
    if ((${#packages[@]} > 0)); then
        if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
            echo "skipped: as root: apt-get install ${packages[*]}"
            return "$SKIPPED"
        fi
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q && apt-get install -q -y --no-install-recommends "${packages[@]}"
    fi
    cargo clippy "${locked[@]}" "${RDMA[@]}" -p smc-interop --features smc-interop/ours \
        --all-targets -q -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc "${locked[@]}" -p smc-transport-rdma --no-deps -q
    verdicts 900 cargo test "${locked[@]}" "${RDMA[@]}" --lib --bins \
        $(tests_of smc-transport-rdma) -- --show-output
    quiet 900 cargo test "${locked[@]}" "${RDMA[@]}" --doc
    # It fails where nothing can be used, which is not for us to say.
    cargo build "${locked[@]}" -q "${RDMA[@]}" --bin smc
    "$TARGET/debug/smc" devices || true
}

step conformance "every device against the conformance suite"
step_conformance() {
    verdicts 600 cargo test "${locked[@]}" "${ALL[@]}" --test conformance -- --show-output
}

step examples "each example"
step_examples() {
    local kind name failed=0 targets=()
    while read -r kind name; do
        targets+=("--$kind" "$name")
    done < <(examples)
    cargo build "${locked[@]}" -q "${ALL[@]}" "${targets[@]}"
    while read -r kind name; do
        [[ $kind != example ]] || name=examples/$name
        quiet 60 "$TARGET/debug/$name" || failed=1
    done < <(examples)
    return "$failed"
}

step model "stream operations against an oracle, $MODEL_SEEDS seeds"
step_model() {
    SMC_MODEL_SEEDS=$MODEL_SEEDS verdicts 900 \
        cargo test "${locked[@]}" "${RELEASE[@]}" --test model -- --show-output
}

step loom "models of ring and wake-ups, all orders of steps up to $LOOM_PREEMPTIONS preemptions"
step_loom() {
    # A build of its own: in it atomics are those of the model checker.
    CARGO_TARGET_DIR=$TARGET/loom RUSTFLAGS="--cfg smc_loom -D warnings" CARGO_PROFILE_DEV_DEBUG=0 \
        LOOM_MAX_PREEMPTIONS=$LOOM_PREEMPTIONS verdicts 900 \
        cargo test "${locked[@]}" -p smc-core -p smc-transport-loop -p smc-transport-ism --lib models:: -- --show-output
}

step kill "a peer killed at random points, $KILL_ROUNDS times"
step_kill() {
    SMC_KILL_ROUNDS=$KILL_ROUNDS verdicts 600 \
        cargo test "${locked[@]}" "${RELEASE[@]}" --test kill -- --show-output
}

step demo "smc demo on both runtimes, short"
step_demo() {
    local runtime left rounds=(--rounds 1)
    build_programs
    # A runtime directory of its own, so that whatever is left in it was left by the demo.
    export SMC_RUNTIME_DIR=$scratch/run
    ls -A /dev/shm >"$scratch/shm"
    for runtime in smol tokio; do
        bounded 600 "$TARGET/release/smc" demo --size "$DEMO_BYTES" "${rounds[@]}" \
            --runtime "$runtime"
    done
    bounded 600 "$TARGET/release/smc" demo --size "$DEMO_BYTES" "${rounds[@]}" --transport ism
    left=$(
        find "$SMC_RUNTIME_DIR" -mindepth 1 || echo "$SMC_RUNTIME_DIR was not used"
        diff "$scratch/shm" <(ls -A /dev/shm) || true
    )
    if [[ -n $left ]]; then
        printf 'left behind:\n%s\n' "$left"
        return 1
    fi
}

step bench "smc bench on both runtimes, as short as can be, for its verification of what arrived"
step_bench() {
    local runtime least=(--rounds 1 --time 50 --connections 2 --clients 2 --open 10)
    build_programs
    for runtime in smol tokio tokio-mt; do
        quiet 300 "$TARGET/release/smc" bench "${least[@]}" --runtime "$runtime"
    done
}

step instructions "instructions of hot calls, counted; takes valgrind and gungraun-runner"
step_instructions() {
    if ! command -v valgrind >/dev/null || ! has_gungraun; then
        echo "skipped: valgrind or gungraun-runner $GUNGRAUN_VERSION is not installed (./test.sh setup)"
        return "$SKIPPED"
    fi
    CARGO_PROFILE_RELEASE_LTO=thin bounded 900 cargo bench "${locked[@]}" -q -p smc-benches
}

step dissect "smc dissect over all captures"
step_dissect() {
    local out=$scratch/dissect.json
    build_programs
    bounded 300 "$TARGET/release/smc" dissect --json smc-wire/tests/vectors/*.pcap >"$out"
    echo "$(wc -l <"$out") messages"
    [[ -s $out ]]
    if grep -m 5 '"error": *[^n ]' "$out"; then
        echo "captured messages did not decode"
        return 1
    fi
}

step fuzz "fuzz targets of the wire format, some seconds each"
step_fuzz() {
    bounded 900 bash smc-wire/fuzz/smoke.sh
}

step ism "SMC-D between this host and virtual machines, over ivshmem; installs QEMU as root"
step_ism() {
    local status=0
    prepare_machines "" 6.12 || status=$?
    ((status == 0)) || return "$status"
    build_programs
    bounded 1200 "$TARGET/release/interop" ism
}

step interop "unmodified kernels against ours, in virtual machines; installs QEMU as root"
step_interop() {
    local packages=() status=0
    command -v cmake >/dev/null || packages+=(cmake)
    has_libclang || packages+=(libclang-dev)
    # Both ends in a guest load them from here.
    compgen -G '/usr/lib/*/libibverbs.so.1' >/dev/null || packages+=(libibverbs1)
    compgen -G '/usr/lib/*/libibverbs/librxe*.so' >/dev/null || packages+=(ibverbs-providers)
    prepare_machines "${packages[*]}" 6.12 6.1 || status=$?
    ((status == 0)) || return "$status"
    quiet 900 cargo build "${locked[@]}" "${RELEASE[@]}" -q --features smc-interop/ours --bin interop
    # What takes an RDMA device, and one whose network may be changed, has both in a guest.
    local name program guest=("$TARGET/release/interop" guest --env SMC_RDMA_CHANGE=eth1:rxe1)
    for name in conformance events; do
        program=$(cargo test "${locked[@]}" --no-run "${RDMA[@]}" --test "$name" 2>&1 |
            sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
        verdicts 300 "${guest[@]}" "$program" --show-output
    done
    quiet 300 cargo build "${locked[@]}" -q "${RDMA[@]}" --bin smc
    bounded 300 "${guest[@]}" "$TARGET/debug/smc" demo --transport rdma --size 8M --rounds 1
    bounded 1500 "$TARGET/release/interop" run --role client --role server --role pair
}

# ---------------------------------------------------------------------------------------------
# Helpers
# ---------------------------------------------------------------------------------------------

# "PACKAGE..." KERNEL-LINE...: sees to it that QEMU, these packages too, and the kernels can be had.
# The program downloads the kernels and unpacks them; only the lists have to be there.
prepare_machines() {
    local packages need line updated=false missing=()
    read -ra packages <<<"$1"
    shift
    if [[ $(uname -m) != x86_64 ]] || ! command -v apt-get >/dev/null; then
        echo "skipped: takes an x86-64 machine with Debian's packages"
        return "$SKIPPED"
    fi
    # Command and the Debian package that has it.
    local needs=(qemu-system-x86_64:qemu-system-x86 ip:iproute2 setpriv:util-linux depmod:kmod
        xz:xz-utils)
    for need in "${needs[@]}"; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${need%%:*}" >/dev/null ||
            packages+=("${need##*:}")
    done
    if ((${#packages[@]} > 0)); then
        if ((EUID != 0)); then
            echo "skipped: as root: apt-get install ${packages[*]}"
            return "$SKIPPED"
        fi
        export DEBIAN_FRONTEND=noninteractive
        quiet 300 apt-get update -q || return
        quiet 900 apt-get install -q -y --no-install-recommends "${packages[@]}" || return
        updated=true
    fi
    local home=${SMC_INTEROP_DIR:-$TARGET/interop}
    for line in "$@"; do
        [[ ! -e $home/linux-$line/complete ]] || continue
        if ! has_kernel "$line" && ((EUID == 0)) && ! $updated; then
            quiet 300 apt-get update -q || true
            updated=true
        fi
        has_kernel "$line" || missing+=("linux-image-$line.*-amd64")
    done
    if ((${#missing[@]} > 0)); then
        echo "skipped: no package ${missing[*]} to be had; apt-get update may help"
        return "$SKIPPED"
    fi
}

# The commands of the project in the release profile: for all steps that use them the same ones, of
# the same parts as the tests.
build_programs() {
    quiet 900 cargo build "${locked[@]}" "${RELEASE[@]}" -q --bin smc --bin interop
}

# LIMIT COMMAND...: runs it, ends it with all its children after LIMIT seconds.
bounded() {
    local limit=$1 status=0
    shift
    timeout --kill-after=10 "$limit" "$@" &
    child=$!
    trap 'kill "$child" 2>/dev/null' INT TERM
    wait "$child" || status=$?
    trap - INT TERM
    ((status != 124)) || echo "no end within $limit seconds: $*"
    return "$status"
}

# As bounded, but shows the output only if the command fails.
quiet() {
    local log status=0
    log=$(mktemp "$scratch/log.XXXXXX")
    echo "\$ ${*:2}"
    bounded "$@" >"$log" 2>&1 || status=$?
    ((status == 0)) || cat "$log"
    return "$status"
}

# As bounded, for cargo test: shows verdicts and what was skipped, and everything if it fails.
# Fails when not a single test ran.
verdicts() {
    local log status=0 ran
    log=$(mktemp "$scratch/log.XXXXXX")
    echo "\$ ${*:2}"
    bounded "$@" >"$log" 2>&1 || status=$?
    if ((status != 0)); then
        cat "$log"
        return "$status"
    fi
    grep -E '^ +(Running|Doc-tests) |^test result: |^ *skipped: ' "$log" |
        grep -v ' 0 passed; 0 failed' || true
    ran=$(awk '/^test result: /{n += $4} END {print n + 0}' "$log")
    echo "$ran" >>"$scratch/tests"
    if ((ran == 0)); then
        echo "no test ran"
        return 1
    fi
}

# Files of the project under a folder, tracked or new, one a line.
sources() {
    git ls-files -co --exclude-standard -- "$1" 2>/dev/null ||
        find "$1" -name target -prune -o -type f -print
}

# WHAT PATTERN FOLDER [BUT]: fails if a text file matches whose path does not match BUT.
no_match() {
    local hits but=${4:-^$}
    hits=$(sources "$3" | while IFS= read -r file; do
        [[ ! -f $file || $file =~ $but ]] || grep -HInE "$2" -- "$file" || true
    done)
    [[ -z $hits ]] && return 0
    printf '%s:\n%s\n' "$1" "$hits"
    return 1
}

# NAME@VERSION: a program of a crate, for all of the machine or in TOOLS.
install_tool() {
    local root=(--root "$TOOLS")
    ((EUID != 0)) || root=()
    CARGO_TARGET_DIR=$TOOLS/build CARGO_PROFILE_RELEASE_DEBUG=false \
        quiet 900 cargo install --locked "${root[@]}" "$1"
}

has_gungraun() {
    [[ $(gungraun-runner --version 2>/dev/null) == "gungraun-runner $GUNGRAUN_VERSION" ]]
}

has_deny() {
    [[ $(cargo deny --version 2>/dev/null) == "cargo-deny $DENY_VERSION" ]]
}

# Features that a manifest declares, without `default` and what needs the RDMA crate.
features_of() {
    awk '/^\[/ { on = ($0 == "[features]") }
         on && /smc-transport-rdma/ { next }
         on && /^[A-Za-z_][A-Za-z0-9_-]* *=/ { sub(/ *=.*/, ""); if ($0 != "default") print }' "$1"
}

# For bindgen: where LIBCLANG_PATH says, known to the linker, or in a folder of LLVM.
has_libclang() {
    [[ -n ${LIBCLANG_PATH:-} ]] && return 0
    ldconfig -p 2>/dev/null | grep -q 'libclang[-.0-9]*so' && return 0
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null
}

# LINE: whether apt knows a kernel package of it.
has_kernel() {
    local names
    names=$(apt-cache pkgnames "linux-image-$1." | grep -E '[0-9]-amd64$' || true)
    [[ -n $names ]]
}

# Integration tests in these crates, as arguments of cargo.
tests_of() {
    local dir file
    for dir in "$@"; do
        for file in "$dir"/tests/*.rs "$dir"/tests/*/main.rs; do
            [[ -e $file ]] || continue
            file=${file%/main.rs}
            printf -- '--test %s ' "$(basename "$file" .rs)"
        done
    done
}

# The programs of the examples package: kind of target and name.
examples() {
    local file
    for file in examples/examples/*.rs examples/examples/*/main.rs; do
        [[ ! -e $file ]] || echo "example $(basename "${file%/main.rs}" .rs)"
    done
    for file in examples/src/bin/*.rs examples/src/bin/*/main.rs; do
        [[ ! -e $file ]] || echo "bin $(basename "${file%/main.rs}" .rs)"
    done
}

# ---------------------------------------------------------------------------------------------
# Main
# ---------------------------------------------------------------------------------------------

main() {
    local keep_going=false wanted=() name
    while (($# > 0)); do
        case $1 in
        --keep-going) keep_going=true ;;
        --list)
            for name in "${STEPS[@]}"; do printf '%-12s %s\n' "$name" "${ABOUT[$name]}"; done
            return 0
            ;;
        -h | --help)
            sed -n '3,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            return 0
            ;;
        -*) echo "unknown option $1; see ./test.sh --help" >&2 && return 2 ;;
        *)
            if [[ -z ${ABOUT[$1]:-} ]]; then
                echo "no step $1; see ./test.sh --list" >&2
                return 2
            fi
            wanted+=("$1")
            ;;
        esac
        shift
    done
    ((${#wanted[@]} > 0)) || wanted=("${STEPS[@]}")

    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' INT TERM
    exec </dev/null

    local passed=() failed=() skipped=() status started
    for name in "${wanted[@]}"; do
        started=$SECONDS
        printf '\n=== %s: %s\n' "$name" "${ABOUT[$name]}"
        # In a subshell of its own, outside of any condition: only there `set -e` holds.
        set +e
        (set -euo pipefail && "step_$name")
        status=$?
        set -e
        case $status in
        0) passed+=("$name") ;;
        "$SKIPPED") skipped+=("$name") ;;
        *) failed+=("$name") ;;
        esac
        printf -- '--- %s: %s, %d s\n' "$name" "$(verdict_of "$status")" "$((SECONDS - started))"
        if ((${#failed[@]} > 0)) && ! $keep_going; then
            break
        fi
    done

    printf '\n%d tests ran in %d of %d steps, %d min %02d s\n' "$(tests_ran)" \
        "$((${#passed[@]} + ${#failed[@]}))" "${#wanted[@]}" \
        "$((SECONDS / 60))" "$((SECONDS % 60))"
    ((${#skipped[@]} == 0)) || echo "skipped: ${skipped[*]}"
    ((${#failed[@]} == 0)) || echo "failed: ${failed[*]}"
    local tail=""
    ((${#skipped[@]} == 0)) || tail=", ${#skipped[@]} skipped"
    echo "${#passed[@]} passed, ${#failed[@]} failed$tail"
    ((${#failed[@]} == 0))
}

verdict_of() {
    case $1 in
    0) echo passed ;;
    "$SKIPPED") echo skipped ;;
    *) echo "FAILED (status $1)" ;;
    esac
}

tests_ran() {
    if [[ -e $scratch/tests ]]; then
        awk '{n += $1} END {print n + 0}' "$scratch/tests"
    else
        echo 0
    fi
}

for manifest in */Cargo.toml; do
    crate=$(awk -F'"' '/^name *=/ { print $2; exit }' "$manifest")
    while IFS= read -r feature; do
        ALL+=(--features "$crate/$feature")
        [[ $feature == peers ]] || RELEASE+=(--features "$crate/$feature")
    done < <(features_of "$manifest")
done
readonly ALL RELEASE

main "$@"
