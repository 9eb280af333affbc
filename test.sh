#!/usr/bin/env bash
#
# The checks of the project, cheap ones first.
#
#   ./test.sh                  what every change has to pass: no virtual machine and no long wait
#   ./test.sh --all            everything
#   ./test.sh fmt clippy       only these steps, as `--all` does them
#   ./test.sh --list           the steps, what they need (.ci/install.sh) and what they are for
#   ./test.sh --keep-going     do not stop at the first failure
#
# Each step first has .ci/install.sh install what it needs: as root packages of the system, as
# another user only what goes to the target folder. A step that this machine cannot do is counted as
# skipped. What a step, or a test, leaves out is reported as "skipped: why"; the step counts by what it
# has done.
#
# The last line counts steps: "N passed, M failed, K skipped".

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly MSRV=1.85

# Answer of a step that could not be done here.
readonly SKIPPED=77

# Of all crates of the workspace.
readonly MANIFESTS=(*/Cargo.toml support/*/Cargo.toml examples/frameworks/Cargo.toml
    dev/{benches,interop}/Cargo.toml)

readonly TARGET=${CARGO_TARGET_DIR:-target}
export PATH="$PWD/$TARGET/tools/bin:$TARGET/tools/bin:${HOME:-}/.cargo/bin:$PATH"
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
export RUST_BACKTRACE=${RUST_BACKTRACE:-1}

locked=()
if [[ -n ${CI:-} ]]; then
    # A fresh clone builds once: incremental state does not pay. Line numbers in backtraces would take
    # most of the disk.
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false CARGO_PROFILE_RELEASE_DEBUG=false
    locked=(--locked)
fi

# Linking for the last bit of speed takes minutes and finds nothing; only where speed is counted it
# is as users have it.
export CARGO_PROFILE_RELEASE_LTO=off

# Where optimised code is looked at closely: one set of features for both steps.
COUNTED=(-p smc-core -p smc-benches)

# A test to build together with programs, for its dev-dependencies: with the same features as for
# tests no dependency is built twice.
AS_TESTS=(--test model)

# [with-rdma]: sets ALL, one set of crates and features for all tests, so that nothing is built twice.
# What `smc bench` is compared with takes long to build, and so does SMC-R on hardware, which needs
# more than a Rust toolchain besides.
select_features() {
    local manifest crate feature
    ALL=(--workspace)
    [[ ${1:-} == with-rdma ]] || ALL+=(--exclude smc-transport-rdma)
    for manifest in "${MANIFESTS[@]}"; do
        crate=$(name_of "$manifest")
        for feature in $(features_of "$manifest"); do
            case $feature in
            peers) ;;
            rdma | ours) [[ ${1:-} != with-rdma ]] || ALL+=(--features "$crate/$feature") ;;
            *) ALL+=(--features "$crate/$feature") ;;
            esac
        done
    done
}

# How thorough: in the release profile and long, or in the profile that has been built already.
thorough() {
    MODEL_SEEDS=${SMC_MODEL_SEEDS:-5000} KILL_ROUNDS=${SMC_KILL_ROUNDS:-100}
    ENDINGS_ROUNDS=${SMC_ENDINGS_ROUNDS:-100}
    LOOM_PREEMPTIONS=${SMC_LOOM_PREEMPTIONS:-4} DEMO_SIZE=64M
    PROFILE=(--release) PROGRAMS=$TARGET/release DOCS=(public all)
    # The frameworks change features of dependencies, and nothing of theirs runs in this profile.
    PROJECT=("${ALL[@]}" --exclude smc-framework-examples)
}
brief() {
    MODEL_SEEDS=${SMC_MODEL_SEEDS:-500} KILL_ROUNDS=${SMC_KILL_ROUNDS:-25}
    ENDINGS_ROUNDS=${SMC_ENDINGS_ROUNDS:-25}
    LOOM_PREEMPTIONS=${SMC_LOOM_PREEMPTIONS:-3} DEMO_SIZE=1M
    PROFILE=() PROGRAMS=$TARGET/debug DOCS=(public)
    PROJECT=("${ALL[@]}")
}

# ---------------------------------------------------------------------------------------------
# Steps
# ---------------------------------------------------------------------------------------------

STEPS=()
declare -A TIER=() NEEDS=() ABOUT=()

# TIER NAME NEEDS DESCRIPTION: the function step_NAME is a step, of `./test.sh` (each) or only of
# `--all` (all). Needs are separated by commas; one with a question mark is not indispensable.
step() {
    STEPS+=("$2")
    TIER[$2]=$1 NEEDS[$2]=$3 ABOUT[$2]=$4
}

step each fmt - "formatting"
step_fmt() {
    cargo fmt --all --check
    cargo fmt --manifest-path dev/fuzz/Cargo.toml --check
}

step each rules - "rules of CONTRIBUTING.md that a text search can check"
step_rules() {
    local failed=0
    # The brackets keep the patterns from matching this file.
    no_match 'unfinished work' '\b(tod[o]|unimplemente[d]|db[g])!|\b(TOD[O]|FIXM[E]|XX[X])\b' . \
        || failed=1
    no_match "a path of a developer's machine" \
        '(^|[^A-Za-z0-9_.-])/(wor[k]|roo[t]|hom[e]|User[s])/' . || failed=1
    no_match 'async code in the sans-I/O part' \
        '^[^/]*(\basync\b|\.await\b)' smc-core/src/proto '/tests(\.rs|/)' || failed=1
    no_match 'a DECLINE code that is chosen elsewhere than in proto/handshake/decline.rs' \
        '^[^/]*DeclineCode::[A-Z]' smc-core/src '/tests(\.rs|/)|/handshake/decline\.rs$' || failed=1
    local program
    for program in dev/interop smc-tools; do
        no_match 'std::fs in a program, whose errors do not name the file as those of fs-err do' \
            '^[^/]*\bstd::fs\b' "$program/src" '/dissect/' || failed=1
    done
    citations_exist || failed=1
    paths_exist || failed=1
    named_tests_exist || failed=1
    words_are_standard || failed=1
    comments_are_narrow || failed=1
    no_match 'a citation of something other than a heading of docs/spec or a section of an RFC' \
        '//.*(\(behaviou[r]( |$)|ehaviou[r] ([0-9]|of (closing|set-up))|ire forma[t]: )' . || failed=1
    return "$failed"
}

step all deny deny "licences, sources, banned crates and advisories of the dependencies"
step_deny() {
    local check=("${locked[@]}" check --hide-inclusion-graph)
    cargo deny "${check[@]}" --allow duplicate bans licenses sources
    if timeout 60 cargo deny fetch db >/dev/null 2>&1; then
        cargo deny "${check[@]}" --disable-fetch advisories
    else
        echo "skipped: advisories, their database cannot be fetched from here"
    fi
}

step each clippy - "lints, all targets, warnings are errors"
step_clippy() {
    lint
}

step all features - "every library alone: no features, then each feature by itself"
step_features() {
    local manifest crate feature
    for manifest in "${MANIFESTS[@]}"; do
        crate=$(name_of "$manifest")
        is_published "$manifest" || continue
        [[ $crate != smc-tools && $crate != smc-transport-rdma ]] || continue
        check_features "$crate"
        for feature in $(features_of "$manifest"); do
            [[ $feature == rdma ]] || check_features "$crate" "$feature"
        done
    done
    # Of programs what no other step builds.
    check_features smc-tools
    check_features smc-tools peers
}

step all msrv old-rust? "the declared Rust version: manifests, lints, and a build of the libraries"
step_msrv() {
    if grep -L '^rust-version' "${MANIFESTS[@]}" | grep .; then
        echo "no rust-version there"
        return 1
    fi
    # One of the lints there, so that after `clippy` there is nothing to do.
    lint
    # Otherwise it has been said what is missing.
    [[ -x $TARGET/trixie/usr/bin/cargo ]] || return 0
    .ci/trixie cargo --version | grep "^cargo $MSRV\."
    fetch x86_64
    # Programs and tests may need a newer one, and so does tonic.
    local libraries=() feature
    for feature in $(features_of smc/Cargo.toml); do
        [[ $feature =~ ^(rdma|tonic014)$ ]] || libraries+=(--features "smc/$feature")
    done
    quiet 900 .ci/trixie cargo check --locked -q -p smc-wire -p smc-core -p smc-ipc -p smc-netlink \
        -p smc-negotiate-local -p smc-negotiate-syn -p smc-transport-loop -p smc-transport-ism \
        -p smc-testkit --features smc-testkit/runtimes -p smc "${libraries[@]}"
}

step all portability old-rust,targets "wire format and machines on s390x (big-endian), i686 (32 bits) and arm64"
step_portability() {
    # Without line numbers it is built faster. Emulation takes its time: few cases of each property, and
    # no simulations.
    export CARGO_PROFILE_DEV_DEBUG=false PROPTEST_CASES=16
    local machine
    fetch s390x i686 aarch64
    for machine in i686 s390x; do
        verdicts 900 .ci/trixie cargo test --locked --target "$machine-unknown-linux-gnu" \
            -p smc-wire -p smc-core --lib --tests -- --show-output --skip simulation
    done
    verdicts 900 .ci/trixie cargo test --locked --target aarch64-unknown-linux-gnu -p smc-wire \
        --lib --tests -- --show-output
    discard "$TARGET"/trixie "$TARGET"/trixie-target
}

step all package - "each crate as it would be published: its metadata, and that its dependencies are there before it"
step_package() {
    local manifest out excluded=()
    for manifest in "${MANIFESTS[@]}"; do
        is_published "$manifest" || excluded+=(--exclude "$(name_of "$manifest")")
    done
    out=$(bounded 300 cargo package --workspace "${excluded[@]}" --no-verify --locked --allow-dirty 2>&1) || {
        echo "$out"
        return 1
    }
    grep -E '^ +Packag(ing|ed) ' <<<"$out"
    ! grep -A 3 '^warning' <<<"$out"
}

step each doc - "documentation, warnings are errors"
step_doc() {
    export RUSTDOCFLAGS="-D warnings"
    local which
    # As users see it, where a link to a private item is an error, and with everything.
    for which in "${DOCS[@]}"; do
        [[ $which != all ]] || set -- --document-private-items
        cargo doc "${locked[@]}" "${ALL[@]}" --no-deps -q "$@"
    done
}

step each unit - "unit tests"
step_unit() {
    verdicts 900 cargo test "${locked[@]}" "${ALL[@]}" --lib --bins -- --show-output
}

step each doctest - "examples in the documentation and in README.md"
step_doctest() {
    verdicts 900 cargo test "${locked[@]}" "${ALL[@]}" --doc
}

step each wire - "captured messages, properties and rejections of the wire format"
step_wire() {
    verdicts 600 cargo test "${locked[@]}" "${ALL[@]}" $(tests_of smc-wire) -- --show-output
}

step each integration network? "streams, negotiation, devices and tools, each in their own processes"
step_integration() {
    local name halves=([0]= [1]=) half=0
    # Names that several crates have are tests of all of them.
    for name in $(tests_of smc smc-core support/* smc-transport-loop smc-transport-ism \
        smc-testkit smc-tools examples | sort -u); do
        [[ ! $name =~ ^--test=(conformance|model|kill|endings|checked_copies)$ ]] || continue
        halves[half]+=" $name"
        half=$((1 - half))
    done
    local test="cargo test ${locked[*]} ${ALL[*]}"
    quiet 1800 $test --no-run -q ${halves[*]}
    # They wait more than they compute.
    at_once "verdicts 1200 $test --no-fail-fast" "${halves[@]/%/ -- --show-output}"
}

step each conformance - "every device against the conformance suite"
step_conformance() {
    verdicts 600 cargo test "${locked[@]}" "${ALL[@]}" --test conformance -- --show-output
}

step each loom - "models of what threads and processes share, all orders of steps up to some preemptions"
step_loom() {
    # A build of its own: in it atomics are those of the model checker.
    CARGO_TARGET_DIR=$TARGET/loom RUSTFLAGS="--cfg smc_loom -D warnings" CARGO_PROFILE_DEV_DEBUG=0 \
        LOOM_MAX_PREEMPTIONS=$LOOM_PREEMPTIONS verdicts 900 cargo test "${locked[@]}" \
        -p smc-core -p smc-transport-loop -p smc-transport-ism -p smc-negotiate-local -p smc \
        --lib models:: -- --show-output
    discard "$TARGET"/loom
}

step all asan - "memory errors and leaks of what has unsafe code, in unit tests with AddressSanitizer"
step_asan() {
    if [[ ! -e $(rustc --print target-libdir)/librustc-stable_rt.asan.a ]]; then
        echo "skipped: the toolchain has no runtime of AddressSanitizer"
        return "$SKIPPED"
    fi
    # The flag is one of nightly toolchains. Simulations have no unsafe code, and take their time.
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$TARGET/asan \
        CARGO_PROFILE_DEV_DEBUG=line-tables-only verdicts 900 cargo test "${locked[@]}" \
        --target "$(rustc --print host-tuple)" -p smc-core -p smc-ipc -p smc-transport-loop -p smc-transport-ism --lib \
        -- --show-output --skip simulation
    discard "$TARGET"/asan
}

step all valgrind memcheck "memory errors and leaks in the unit tests of the loop device, with valgrind"
step_valgrind() {
    local program
    program=$(executables smc-transport-loop smc_transport_loop)
    # What is left at the end on purpose, as threads, is still reachable.
    verdicts 300 valgrind --quiet --fair-sched=try --error-exitcode=1 --leak-check=full \
        --show-leak-kinds=definite --errors-for-leak-kinds=definite "$program" --show-output
}

step each model - "stream operations against an oracle, by seed"
step_model() {
    SMC_MODEL_SEEDS=$MODEL_SEEDS verdicts 900 cargo test "${locked[@]}" "${PROFILE[@]}" \
        "${PROJECT[@]}" --test model -- --show-output
}

step all simulation - "whole endpoints with faults under virtual time, by seed"
step_simulation() {
    verdicts 1800 cargo test "${locked[@]}" "${PROFILE[@]}" "${PROJECT[@]}" \
        --test simulation -- --show-output
}

step each kill - "a peer killed at random points"
step_kill() {
    SMC_KILL_ROUNDS=$KILL_ROUNDS verdicts 600 cargo test "${locked[@]}" "${PROFILE[@]}" \
        "${PROJECT[@]}" --test kill -- --show-output
}

step each endings - "either end of a connection ends at every point"
step_endings() {
    SMC_ENDINGS_ROUNDS=$ENDINGS_ROUNDS verdicts $((900 + ENDINGS_ROUNDS)) \
        cargo test "${locked[@]}" "${PROFILE[@]}" "${PROJECT[@]}" --test endings -- --show-output
}

step each examples - "each example"
step_examples() {
    local file failed=0
    build_programs
    for file in examples/src/bin/*.rs; do
        quiet 60 "$PROGRAMS/$(basename "$file" .rs)" || failed=1
    done
    return "$failed"
}

step each frameworks - "each example with a framework, 100 connections"
step_frameworks() {
    local file failed=0
    # As tests are built: the frameworks are large.
    quiet 1800 cargo build "${locked[@]}" "${ALL[@]}" -q --bins "${AS_TESTS[@]}"
    export SMC_RUNTIME_DIR=$scratch/run
    for file in examples/frameworks/src/bin/*.rs; do
        quiet 60 "$TARGET/debug/$(basename "$file" .rs)" || failed=1
    done
    return "$failed"
}

step each demo - "smc demo on both runtimes and over ISM, short"
step_demo() {
    local carrier left
    build_programs
    # A runtime directory of its own, so that whatever is left in it was left by the demo.
    export SMC_RUNTIME_DIR=$scratch/run
    for carrier in "--runtime smol" "--runtime tokio" "--transport ism"; do
        bounded 600 "$PROGRAMS/smc" demo --size "$DEMO_SIZE" --rounds 1 $carrier
    done
    left=$(find "$SMC_RUNTIME_DIR" -mindepth 1 || echo "$SMC_RUNTIME_DIR was not used")
    if [[ -n $left ]]; then
        printf 'left behind:\n%s\n' "$left"
        return 1
    fi
}

step each dissect - "smc dissect over all captures"
step_dissect() {
    local out=$scratch/dissect.json
    build_programs
    bounded 300 "$PROGRAMS/smc" dissect --json smc-wire/tests/vectors/*.pcap >"$out"
    echo "$(wc -l <"$out") messages"
    [[ -s $out ]]
    if grep -m 5 '"error": *[^n ]' "$out"; then
        echo "captured messages did not decode"
        return 1
    fi
}

step all book site "the pages as a site, and their links"
step_book() {
    bounded 120 dev/book/site.sh
}

step each commands commands "the commands in the pages"
step_commands() {
    build_programs
    bounded 900 dev/book/commands.sh "$PROGRAMS"
}

step all bench - "smc bench on both runtimes, as short as can be, for its verification of what arrived"
step_bench() {
    local runtime least=(--rounds 1 --time 50 --connections 2 --clients 2 --open 10)
    build_programs
    for runtime in smol tokio tokio-mt; do
        quiet 300 "$PROGRAMS/smc" bench "${least[@]}" --runtime "$runtime"
    done
}

step all release - "what only code as optimised as that of users can do wrong"
step_release() {
    CARGO_PROFILE_RELEASE_LTO=thin verdicts 900 cargo test "${locked[@]}" "${PROFILE[@]}" \
        "${COUNTED[@]}" --test checked_copies -- --show-output
}

step all fuzz fuzz "fuzz targets of the wire format and of what peers drive, some seconds each"
step_fuzz() {
    bounded 1800 dev/fuzz/smoke.sh
    discard "${CARGO_TARGET_DIR:-dev/fuzz/target}/$(rustc --print host-tuple)"
}

step all instructions count "instructions of hot calls, counted with valgrind"
step_instructions() {
    CARGO_PROFILE_RELEASE_LTO=thin bounded 900 cargo bench "${locked[@]}" -q "${COUNTED[@]}" \
        --bench hot --bench cdc --bench devices
}

step all rdma verbs "SMC-R on hardware; tests need an RDMA device"
step_rdma() {
    # Lints, documentation and tests of its library are those of the other steps.
    verdicts 900 cargo test "${locked[@]}" "${ALL[@]}" $(tests_of smc-transport-rdma) -- --show-output
    # It fails where nothing can be used, which is not for us to say.
    quiet 1800 cargo build "${locked[@]}" "${ALL[@]}" -q --bins "${AS_TESTS[@]}"
    "$TARGET/debug/smc" devices || true
}

step all ism guests "SMC-D between this host and virtual machines, over ivshmem"
step_ism() {
    build_programs
    bounded 120 "$PROGRAMS/interop" ism --demo
    bounded 1200 "$PROGRAMS/interop" ism
}

step all interop guests,old-kernel,verbs,soft-roce,strace "unmodified kernels against ours, in virtual machines"
step_interop() {
    build_programs
    # What takes an RDMA device, and one whose network may be changed, has both in a guest.
    local program programs guest=("$PROGRAMS/interop" guest --env SMC_RDMA_CHANGE=eth1:rxe1)
    programs=$(executables smc-transport-rdma smc_transport_rdma \
        verbs_{conformance,events,links,links_one_span})
    for program in $programs; do
        verdicts 300 "${guest[@]}" "$program" --show-output
    done
    quiet 1800 cargo build "${locked[@]}" "${ALL[@]}" -q --bins "${AS_TESTS[@]}"
    bounded 300 "${guest[@]}" "$TARGET/debug/smc" demo --transport rdma --size 8M --rounds 1
    at_once "bounded 600 $PROGRAMS/interop" "soak --failovers 2" "sockets $TARGET/debug/smc" early \
        wire-image
    bounded 60 "$PROGRAMS/interop" hosts --client here --server here --address 127.0.0.1 \
        --pair tcp-tcp --report "$scratch/hosts" echo many-50
    bounded 1500 "$PROGRAMS/interop" run --labs 4 --role client --role server --role pair
}

# ---------------------------------------------------------------------------------------------
# Helpers
# ---------------------------------------------------------------------------------------------

# NEED,...: has them installed. What cannot be is the end of the step, unless a question mark follows.
provide() {
    local need out status
    [[ $1 != - ]] || return 0
    for need in ${1//,/ }; do
        status=0
        out=$(bounded 1800 .ci/install.sh "${need%\?}" 2>&1) || status=$?
        if ((status == SKIPPED)); then
            echo "skipped: $(tail -n 1 <<<"$out")"
            [[ $need == *\? ]] || exit "$SKIPPED"
        elif ((status != 0)); then
            echo "$out"
            exit "$status"
        fi
    done
}

# All that can be linted without RDMA. The lint for the declared Rust version is one of the usual ones,
# and is named because `msrv` relies on it.
lint() {
    cargo clippy "${locked[@]}" "${ALL[@]}" --all-targets -q -- \
        -D warnings -D clippy::incompatible_msrv
}

# CRATE [FEATURE]: checks it with this feature alone, without the lints of clippy, which take as long again.
check_features() {
    local out status=0
    echo "$1${2:+ + $2}"
    out=$(cargo check "${locked[@]}" -q -p "$1" --no-default-features --features "${2:-}" 2>&1) || status=$?
    [[ -z $out ]] || echo "$out"
    # Warnings.
    ((status == 0)) && [[ -z $out ]]
}

# MACHINE...: downloads what building for them takes, for .ci/trixie, where cargo is offline.
fetch() {
    cargo fetch --locked -q $(printf -- '--target=%s-unknown-linux-gnu ' "$@")
}

# FOLDER...: removes what no later step needs, where all is built once.
discard() {
    [[ -z ${CI:-} ]] || rm -rf "$@"
}

# CRATE NAME...: the executables of these tests of a crate, built as for the other steps.
executables() {
    local out name crate=$1
    shift
    if ! out=$(cargo test "${locked[@]}" --no-run "${ALL[@]}" --lib $(tests_of "$crate") 2>&1); then
        echo "$out" >&2
        return 1
    fi
    for name; do
        sed -n "s/^ *Executable .*(\(.*\/$name-[0-9a-f]*\))$/\1/p" <<<"$out"
    done
}

# ARGUMENTS...: builds the commands and examples of the project into PROGRAMS.
build_programs() {
    quiet 1800 cargo build "${locked[@]}" "${PROFILE[@]}" "${PROJECT[@]}" -q --bins "${AS_TESTS[@]}" \
        "$@"
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

# COMMAND ARGUMENTS...: runs COMMAND with each of ARGUMENTS, all at once, and shows what they print
# one after the other. For what waits more than it computes. Both are words with spaces between them.
at_once() {
    local command=$1 logs pids=() at failed=0
    shift
    logs=$(mktemp -d "$scratch/logs.XXXXXX")
    for at in $(seq $#); do
        ($command ${!at}) >"$logs/$at" 2>&1 &
        pids+=($!)
    done
    for at in $(seq $#); do
        wait "${pids[at - 1]}" || failed=1
        printf '$ %s %s\n' "$command" "${!at}"
        cat "$logs/$at"
    done
    return "$failed"
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
    local hits
    hits=$(sources "$3" | grep -vE "${4:-^$}" | xargs -r -d '\n' grep -sHInE "$2" -- || true)
    [[ -z $hits ]] && return 0
    printf '%s:\n%s\n' "$1" "$hits"
    return 1
}

# Whether the lines of comments have at most 100 columns, as those of code do: rustfmt leaves comments
# as they are. Rows of tables are longer, and commands to be copied.
comments_are_narrow() {
    local hits
    hits=$(sources . | grep '\.rs$' | LC_ALL=C.UTF-8 xargs -d '\n' grep -HnE '^.{101}' -- |
        grep -E '^[^:]+:[0-9]+: *//[/!]? ' | grep -vE ': *//[/!]? (\||cargo )' || true)
    [[ -z $hits ]] && return 0
    printf 'comments with more than 100 columns:\n%s\n' "$hits"
    return 1
}

# Whether names, comments, documents and paths are free of the words that docs/glossary.md lists as
# not used, also as parts of names in snake_case and CamelCase.
words_are_standard() {
    local words parts text hits
    words=$(sed -nE '/^## Words that are not used/,$s/^\| (`[a-z_`, ]*`) \|.*/\1/p' docs/glossary.md |
        tr -d '`' | sed 's/, /|/g' | paste -sd'|')
    if [[ -z $words ]]; then
        echo 'no list of words in docs/glossary.md'
        return 1
    fi
    parts=$(sed -E 's/(^|\|)(.)/\1\u\2/g' <<<"$words")
    hits=$(
        sources . | grep -iE "(^|[^a-z])($words)([^a-z]|$)" || true
        text=$(sources . | grep -vx docs/glossary.md)
        xargs -r -d '\n' grep -sHnIiE "(^|[^a-z])($words)([^a-z]|$)" -- <<<"$text" || true
        xargs -r -d '\n' grep -sHnIE "[a-z]($parts)([^a-z]|$)" -- <<<"$text" || true
    )
    [[ -z $hits ]] && return 0
    printf 'a word that is not used here (docs/glossary.md has another):\n%s\n' "$hits"
    return 1
}

# Whether each test that SECURITY.md names exists.
named_tests_exist() {
    local missing
    missing=$(comm -23 <(grep -oE '`[a-z0-9]+(_[a-z0-9]+){3,}`' SECURITY.md | tr -d '`' | sort -u) \
        <(sources . | grep '\.rs$' | xargs -r -d '\n' grep -shoE '\bfn [a-z0-9_]+' | sed 's/fn //' | sort -u))
    [[ -z $missing ]] && return 0
    printf 'SECURITY.md names a test that does not exist:\n%s\n' "$missing"
    return 1
}

# Whether each page and heading of docs/spec that is cited, in sources or by a link, exists.
citations_exist() {
    local page='docs/spec/[A-Za-z0-9_-]+\.md(#[A-Za-z0-9_-]+)?' missing
    missing=$(comm -13 <(spec_headings | sort -u) <({
        sources . | xargs -r -d '\n' grep -shoIE "$page" -- || true
        # Links of a page to itself and to its siblings.
        grep -oE '\]\(([a-z-]+\.md)?(#[^)]+)?\)' docs/spec/*.md |
            sed -E 's/\]\(|\)$//g; s/^([^:]*):#/\1#/; s/^[^:#]*:/docs\/spec\//'
    } | sort -u))
    [[ -z $missing ]] && return 0
    printf 'a citation of a page or heading that does not exist:\n%s\n' "$missing"
    return 1
}

# Whether each file or folder of the project that a document names exists, in whole or from some folder on.
# docs/architecture.md has short forms for the two folders that it names most.
paths_exist() {
    local missing
    missing=$(comm -13 <(sources . | awk -F/ '{
        # Each path, and each folder above it, with and without the folders before.
        for (last = 2; last <= NF; last++) {
            path = $last
            for (first = last - 1; first > 0; first--) print path = $first "/" path
        }
    }' | sort -u) <({
        grep -shoE '`[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+`' -- *.md docs/*.md docs/spec/*.md | tr -d '`'
        grep -oE '\b(smc|core)/[a-z0-9_/]+(\.(rs|md))?' docs/architecture.md |
            sed -E 's|^core/|smc-core/|; s|^(smc[a-z-]*)/(src/)?|\1/src/|; s|/$||'
    } | grep -vE '^(\.|target/|0x)' | sort -u))
    [[ -z $missing ]] && return 0
    printf 'a document names a path that does not exist:\n%s\n' "$missing"
    return 1
}

# Pages of docs/spec, and each of their headings as the anchor that it has.
spec_headings() {
    local page
    for page in docs/spec/*.md; do
        echo "$page"
        sed -nE '/^```/,/^```/d; s/^#+ //p' "$page" | tr '[:upper:]' '[:lower:]' |
            sed "s/[^a-z0-9 -]//g; s/ /-/g; s|^|$page#|"
    done
}

# Features that a manifest declares, without `default`.
features_of() {
    sed -n '/^\[features\]/,/^$/s/^\([a-z0-9-]*\) = .*/\1/p' "$1" | grep -vx default || true
}

# MANIFEST: the name of its package.
name_of() {
    sed -n '0,/^name = "\(.*\)"/s//\1/p' "$1"
}

# MANIFEST: whether its package is for others than this project.
is_published() {
    ! grep -q '^publish = false' "$1"
}

# Integration tests in these crates, as arguments of cargo.
tests_of() {
    local dir file
    for dir in "$@"; do
        for file in "$dir"/tests/*.rs "$dir"/tests/*/main.rs; do
            [[ ! -e $file ]] || echo "--test=$(basename "${file%/main.rs}" .rs)"
        done
    done
}

# ---------------------------------------------------------------------------------------------
# Main
# ---------------------------------------------------------------------------------------------

main() {
    local keep_going=false all=false wanted=() name
    while (($# > 0)); do
        case $1 in
        --keep-going) keep_going=true ;;
        --all) all=true ;;
        --list)
            for name in "${STEPS[@]}"; do
                printf '%-5s %-12s %-34s %s\n' "${TIER[$name]}" "$name" "${NEEDS[$name]}" \
                    "${ABOUT[$name]}"
            done
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
    select_features
    thorough
    if ((${#wanted[@]} == 0)); then
        $all || brief
        for name in "${STEPS[@]}"; do
            if $all || [[ ${TIER[$name]} == each ]]; then wanted+=("$name"); fi
        done
    fi

    # A command of a page, whose arguments are all there is to check.
    if [[ -n ${SMC_DRY_RUN:-} ]]; then
        printf 'steps: %s\n' "${wanted[*]}"
        return 0
    fi

    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' INT TERM
    exec </dev/null
    : >"$scratch/tests"
    bounded 900 .ci/install.sh base || return 1

    # SMC-R on hardware is built with all else, where a step needs it and it can be built.
    case " ${wanted[*]} " in
    *" rdma "* | *" interop "*)
        if bounded 1800 .ci/install.sh verbs; then
            select_features with-rdma
            thorough
        fi
        ;;
    esac

    local passed=() failed=() skipped=() status started
    for name in "${wanted[@]}"; do
        started=$SECONDS
        printf '\n=== %s: %s\n' "$name" "${ABOUT[$name]}"
        # In a subshell of its own, outside of any condition: only there `set -e` holds.
        set +e
        (
            set -e
            trap 'times >"$scratch/times"' EXIT
            provide "${NEEDS[$name]}"
            "step_$name"
        )
        status=$?
        set -e
        case $status in
        0) passed+=("$name") ;;
        "$SKIPPED") skipped+=("$name") ;;
        *) failed+=("$name") ;;
        esac
        printf -- '--- %s: %s, %d s, %d s of CPU time\n' "$name" "$(verdict_of "$status")" \
            "$((SECONDS - started))" "$(cpu_seconds)"
        if ((${#failed[@]} > 0)) && ! $keep_going; then
            break
        fi
    done

    printf '\n%d tests ran in %d of %d steps, %d min %02d s\n' "$(tests_ran)" \
        "$((${#passed[@]} + ${#failed[@]}))" "${#wanted[@]}" \
        "$((SECONDS / 60))" "$((SECONDS % 60))"
    ((${#skipped[@]} == 0)) || echo "skipped: ${skipped[*]}"
    ((${#failed[@]} == 0)) || echo "failed: ${failed[*]}"
    echo "${#passed[@]} passed, ${#failed[@]} failed, ${#skipped[@]} skipped"
    ((${#failed[@]} == 0))
}

verdict_of() {
    case $1 in
    0) echo passed ;;
    "$SKIPPED") echo skipped ;;
    *) echo "FAILED (status $1)" ;;
    esac
}

# What the processes of the last step took, as `times` shows it in its second line.
cpu_seconds() {
    awk 'NR == 2 { split($0, part, /[ms ]+/); print int((part[1] + part[3]) * 60 + part[2] + part[4]) }' "$scratch/times"
}

tests_ran() {
    awk '{n += $1} END {print n + 0}' "$scratch/tests"
}

main "$@"
