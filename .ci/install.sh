#!/usr/bin/env bash
#
# Installs what checks need: the one list of packages, components, tools, kernels, and packages of
# another Debian.
#
#   .ci/install.sh NEED...          installs what is missing of these needs
#   .ci/install.sh --list NEED...   prints what they consist of, as "KIND NAME", and installs nothing
#   .ci/install.sh --needs          prints the names of all needs
#
# Packages are installed as root; other users get their names. Cargo tools go to the target folder, and
# so do packages of Debian trixie, which has Rust 1.85 and its standard library for other machines than
# this one. They are unpacked, not installed; .ci/trixie runs commands there.
# Status 0: everything is there; 77: something is missing that cannot be installed here, and the
# last line says what; 1: an installation has failed.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly MISSING=77
readonly TARGET=${CARGO_TARGET_DIR:-target}
readonly KERNELS=${SMC_INTEROP_DIR:-$TARGET/interop}
readonly TRIXIE=$TARGET/trixie
export PATH="$TARGET/tools/bin:${HOME:-}/.cargo/bin:$PATH:/usr/sbin:/sbin" DEBIAN_FRONTEND=noninteractive

# The need, what it consists of, and the command or the files that show that it is there.
readonly TABLE='
base     package    gcc                     cc
base     package    libc6-dev               /usr/include/stdio.h
base     component  rustfmt                 cargo-fmt
base     component  clippy                  cargo-clippy
network  package    iproute2                ip
network  package    iptables                iptables
network  package    procps                  sysctl
fuzz     package    g++                     c++
deny     tool       cargo-deny@0.20.2       cargo-deny
memcheck package    valgrind                valgrind
count    package    valgrind                valgrind
count    tool       gungraun-runner@0.20.0  gungraun-runner
commands package    iproute2                ip
commands package    jq                      jq
commands package    less                    less
site     tool       mdbook@0.5.4            mdbook
verbs    package    cmake                   cmake
verbs    package    make                    make
verbs    package    libclang-dev            /usr/lib/llvm-*/lib/libclang.so /usr/lib*/libclang.so
guests   package    qemu-system-x86         qemu-system-x86_64
guests   package    iproute2                ip
guests   package    kmod                    depmod
guests   package    xz-utils                xz
guests   kernel     6.12                    -
soft-roce  package  libibverbs1             /usr/lib/*/libibverbs.so.1
soft-roce  package  ibverbs-providers       /usr/lib/*/libibverbs/librxe*.so
strace   package    strace                  strace
old-kernel kernel   6.1                     -
old-rust trixie     rustc                   -
old-rust trixie     cargo                   -
targets  trixie     clang-19                -
targets  trixie     lld-19                  -
targets  trixie     coreutils               -
targets  trixie     qemu-user               -
targets  trixie     libc6-dev-s390x-cross   -
targets  trixie     libc6-dev-arm64-cross   -
targets  trixie     libc6-dev-i386-cross    -
targets  trixie     libgcc-14-dev-s390x-cross -
targets  trixie     libgcc-14-dev-arm64-cross -
targets  trixie     libgcc-14-dev-i386-cross  -
targets  trixie     libstd-rust-dev:s390x   -
targets  trixie     libstd-rust-dev:arm64   -
targets  trixie     libstd-rust-dev:i386    -
'

main() {
    local mode=install need
    case ${1:-} in
    --needs) mode=needs ;;
    --list) mode=list && shift ;;
    -* | '') sed -n '3,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && return 2 ;;
    esac
    if [[ $mode == needs ]]; then
        awk 'NF { print $1 }' <<<"$TABLE" | sort -u
        return
    fi
    for need in "$@"; do
        if ! rows "$need" | grep -q .; then
            echo "no need $need; see .ci/install.sh --needs" >&2
            return 2
        fi
    done

    local kind name probes options packages=() components=() tools=() kernels=() unpacked=()
    while read -r kind name probes; do
        if [[ $mode == list ]]; then
            echo "$kind $name"
            continue
        fi
        case $kind in
        package) is_there "$probes" || packages+=("$name") ;;
        # The proxies of rustup are there without their components.
        component) "$probes" --version >/dev/null 2>&1 || components+=("$name") ;;
        tool) has_tool "$name" || tools+=("$name") ;;
        kernel) [[ -e $KERNELS/linux-$name/complete ]] || kernels+=("$name") ;;
        trixie) is_unpacked "$name" || unpacked+=("$name") ;;
        esac
    done < <(for need in "$@"; do rows "$need"; done | sort -u)
    [[ $mode == install ]] || return 0

    ((${#packages[@]} == 0)) || install_packages "${packages[@]}"
    if ! command -v cargo >/dev/null; then
        echo "missing: a stable Rust toolchain (https://rustup.rs)"
        return "$MISSING"
    fi
    ((${#components[@]} == 0)) || install_components "${components[@]}"
    ((${#kernels[@]} == 0)) || find_kernels "${kernels[@]}"
    ((${#unpacked[@]} == 0)) || unpack_trixie "${unpacked[@]}"
    # From source. Without optimisation that takes half as long, and no tool has much to do.
    for name in "${tools[@]}"; do
        # A step needs no server of pages, and no search in them.
        options=()
        [[ $name != mdbook@* ]] || options=(--no-default-features)
        CARGO_TARGET_DIR=$TARGET/tools/build CARGO_PROFILE_DEV_DEBUG=false \
            cargo install -q --locked --debug --root "$TARGET/tools" "${options[@]}" "$name"
    done
}

# NEED: kind, name and probes of all that belongs to it.
rows() {
    awk -v need="$1" '$1 == need { $1 = ""; print substr($0, 2) }' <<<"$TABLE"
}

# COMMAND or FILES: whether the command, or one of the files, is there.
is_there() {
    local probe
    # The user's choice for bindgen is as good as ours.
    [[ $1 != */libclang.so* || -z ${LIBCLANG_PATH:-} ]] || return 0
    for probe in $(set -f && printf '%s\n' $1); do
        command -v "$probe" >/dev/null && return 0
        [[ $probe == /* ]] && compgen -G "$probe" >/dev/null && return 0
    done
    return 1
}

# NAME@VERSION
has_tool() {
    local name=${1%@*} program=("${1%@*}")
    [[ $name != cargo-* ]] || program=(cargo "${name#cargo-}")
    [[ $("${program[@]}" --version 2>/dev/null) =~ ^"$name "v?"${1#*@}"$ ]]
}

install_packages() {
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
        echo "missing; as root: apt-get install $*"
        return "$MISSING"
    fi
    update_lists
    apt-get install -q -y --no-install-recommends "$@"
}

install_components() {
    if ! command -v rustup >/dev/null; then
        echo "missing: components of the Rust toolchain: $*"
        return "$MISSING"
    fi
    rustup component add "$@"
}

# The program `interop` downloads and unpacks them; only apt has to know them.
find_kernels() {
    local line missing=()
    if [[ $(uname -m) != x86_64 ]] || ! command -v apt-cache >/dev/null; then
        echo "missing: an x86-64 machine with Debian's packages, for kernels"
        return "$MISSING"
    fi
    for line in "$@"; do
        has_kernel "$line" || ((EUID != 0)) || update_lists
        has_kernel "$line" || missing+=("linux-image-$line.*-amd64")
    done
    if ((${#missing[@]} > 0)); then
        echo "missing: a package ${missing[*]}; apt-get update may help"
        return "$MISSING"
    fi
}

has_kernel() {
    apt-cache pkgnames "linux-image-$1." | grep -E '[0-9]-amd64$' >/dev/null
}

# PACKAGE or PACKAGE:ARCHITECTURE
is_unpacked() {
    [[ $(dpkg-query --admindir="$TRIXIE/var/lib/dpkg" -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# PACKAGE...: unpacks them with all that they depend on; those of other architectures alone, as the
# compiler reads them and nothing runs them.
unpack_trixie() {
    local mirror name native=() foreign=() architectures=(amd64) namespace=(unshare --mount)
    ((EUID == 0)) || namespace+=(--map-root-user)
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 2>/dev/null |
        head -n 1) || mirror=
    if [[ $(uname -m) != x86_64 || -z $mirror ]] || ! "${namespace[@]}" true 2>/dev/null; then
        echo "missing: an x86-64 machine with Debian's packages, and root or namespaces of users, for packages of trixie"
        return "$MISSING"
    fi
    for name in "$@"; do
        if [[ $name == *:* ]]; then
            foreign+=("$name")
            architectures+=("${name#*:}")
        else
            native+=("$name")
        fi
    done

    local var=$TRIXIE/var
    mkdir -p "$TRIXIE"/{dev,proc,tmp,usr/{bin,lib,lib64,sbin}} \
        "$TRIXIE"/etc/apt/{apt.conf,preferences}.d "$var"/{lib/{dpkg,apt/lists/partial},cache/apt/archives/partial}
    for name in bin lib lib64 sbin; do
        [[ -e $TRIXIE/$name ]] || ln -s "usr/$name" "$TRIXIE/$name"
    done
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" \
        >"$TRIXIE/etc/apt/sources.list"
    # Nothing of the configuration of this system, which would have its hooks run.
    cat >"$TRIXIE/apt.conf" <<END
Dir "$(realpath "$TRIXIE")";
Dir::State::status "$(realpath "$var")/lib/dpkg/status";
APT::Architecture "amd64";
APT::Architectures { $(printf '"%s"; ' "${architectures[@]}")};
APT::Install-Recommends "false";
APT::Sandbox::User "$(id -un)";
Acquire::Languages "none";
END
    touch "$var/lib/dpkg/status"
    local -x APT_CONFIG
    APT_CONFIG=$(realpath "$TRIXIE/apt.conf")
    if ! apt-get update -q --error-on=any; then
        echo "missing: packages of Debian trixie, whose lists cannot be fetched"
        return "$MISSING"
    fi
    ((${#native[@]} == 0)) || apt-get install -q -y --download-only "${native[@]}"
    ((${#foreign[@]} == 0)) || (cd "$var/cache/apt/archives" && apt-get download -q "${foreign[@]}")
    for name in "$var"/cache/apt/archives/*.deb; do
        dpkg-deb -x "$name" "$TRIXIE"
        # Without dependencies: apt would not leave them as they are.
        {
            dpkg-deb -f "$name" | sed -E '/^(Pre-Depends|Depends|Breaks|Conflicts):/d'
            printf 'Status: install ok installed\n\n'
        } >>"$var/lib/dpkg/status"
        rm "$name"
    done
}

updated=false
update_lists() {
    $updated || apt-get update -q
    updated=true
}

main "$@"
