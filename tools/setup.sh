#!/usr/bin/env bash
# Installs what Skerry needs on this machine and the Python environment in .venv; a second run does nothing.
# Usage: tools/setup.sh [test]     ("test" adds the compiler of the fuzzers, a browser and the other programs that only tests use)
set -euo pipefail
cd "$(dirname "$0")/.."
exec 9<tools/setup.sh && flock 9 # one at a time: two runs would write the same .venv

say() { printf '\033[2m» %s\033[0m\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
# Tries again when a registry does not answer.
patiently() {
    local pause
    for pause in 5 15; do
        "$@" && return
        say "trying again in $pause s: $1 ${2:-} ${3:-}"
        sleep "$pause"
    done
    "$@"
}
has() { command -v "$1" >/dev/null 2>&1; }

# New enough, and able to make a virtual environment (Debian splits that off into python3-venv).
usable() { "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
find_python() {
    local python
    for python in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
        if usable "$python"; then
            echo "$python"
            return
        fi
    done
    return 1
}

has_headers() { [[ -e /usr/include/errno.h && -e /usr/include/linux/openat2.h ]]; }
has_seccomp() { compgen -G '/usr/lib/*/libseccomp.so.2' >/dev/null || ldconfig -p 2>/dev/null | grep -q 'libseccomp\.so\.2'; }
has_fuzzer() {
    has clang && compgen -G "$(clang -print-resource-dir)/lib/linux/libclang_rt.fuzzer-$(uname -m).a" >/dev/null
}

missing_packages() {
    find_python >/dev/null || echo python3 python3-venv
    has gcc || echo gcc
    has_headers || echo libc6-dev
    has musl-gcc || echo musl-tools
    has crun || echo crun
    has runc || echo runc
    has nft || echo nftables
    has ip || echo iproute2
    has mkfs.btrfs || echo btrfs-progs
    has mmdebstrap || echo mmdebstrap
    has skopeo || echo skopeo
    has umoci || echo umoci
    has curl || echo curl # the server prints a line for it
    # A sandbox that has this machine's programs unpacks `source=` with them.
    has xz || echo xz-utils
    has bzip2 || echo bzip2
    has zstd || echo zstd
    has_seccomp || echo libseccomp2
    [[ -e /etc/ssl/certs/ca-certificates.crt || -n ${SSL_CERT_FILE:-} ]] || echo ca-certificates
    [[ ${1:-} != test ]] || has mkfs.ext4 || [[ -x /sbin/mkfs.ext4 ]] || echo e2fsprogs # encrypted disks
    [[ ${1:-} != test ]] || has ps || echo procps
    [[ ${1:-} != test ]] || has git || echo git
    [[ ${1:-} != test ]] || has less || echo less
    [[ ${1:-} != test ]] || has vi || echo vim-tiny
    [[ ${1:-} != test ]] || has chromium || echo chromium
    [[ ${1:-} != test ]] || has_fuzzer || echo clang "$(fuzzer_package)"
}

# The fuzzer's runtime has its own package, named after clang's version, where clang does not carry it.
fuzzer_package() {
    apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p' | while read -r name; do
        apt-cache show "$name" >/dev/null 2>&1 && echo "$name"
    done | head -n 1
}

apt() { DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >/dev/null; }

install_packages() {
    local packages
    packages=$(missing_packages "${1:-}" | xargs)
    [[ -n $packages ]] || return 0
    has apt-get || die "these packages are missing, and there is no apt-get to install them: $packages"
    [[ $EUID -eq 0 ]] || die "these packages are missing and only root can install them: $packages
hint: run \`sudo make setup\`"
    say "apt-get install $packages"
    patiently apt update || say "apt-get update failed; trying with the present package lists"
    packages=$(missing_packages "${1:-}" | xargs) # again: only now some names may be known
    # shellcheck disable=SC2086  # a list of words
    patiently apt install -y --no-install-recommends $packages
    packages=$(missing_packages "${1:-}" | xargs)
    if [[ $packages == *python3* ]]; then # an older release, whose python3 is not new enough
        apt install -y --no-install-recommends python3.12 python3.12-venv ||
            apt install -y --no-install-recommends python3.11 python3.11-venv || die "Python 3.11 or newer is needed"
        packages=$(missing_packages "${1:-}" | xargs)
    fi
    [[ -z $packages ]] || die "still missing after apt-get install: $packages"
}

make_venv() {
    local want python
    want="$PWD $(cat pyproject.toml requirements-dev.txt requirements-uv.txt tools/setup.sh | sha256sum)"
    if [[ -x .venv/bin/skerry && $(cat .venv/setup-stamp 2>/dev/null) == "$want" ]] && .venv/bin/python -c ''; then
        return
    fi
    rm -f .venv/setup-stamp
    # A virtual environment holds absolute paths: make a new one if it was moved here.
    if ! .venv/bin/python -m pip --version 2>/dev/null | grep -qF "$PWD/.venv/" || ! usable .venv/bin/python; then
        python=$(find_python)
        say "$("$python" --version) in .venv"
        "$python" -m venv --clear .venv
    fi
    say "Python packages, locked by hash"
    # uv is quick; pip is the fallback where only pip is configured for this machine's index.
    .venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-uv.txt || say "no uv"
    # --python: ignore an environment that is active in the caller's shell
    .venv/bin/uv pip install -q --python .venv/bin/python --system-certs --compile-bytecode --require-hashes -r requirements-dev.txt ||
        patiently .venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.txt
    .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
    printf '%s\n' "$want" >.venv/setup-stamp
}

# The API page's files come from a package that is locked by hash and not installed.
fetch_page() {
    local target=src/skerry/server/static/docs want wheel
    want=$(cat requirements-page.txt tools/fetch_page.py | sha256sum)
    [[ $(cat $target/stamp 2>/dev/null) != "$want" ]] || return 0
    say "the API page"
    wheel=$(mktemp -d)
    patiently .venv/bin/python -m pip download -q --disable-pip-version-check --no-deps --require-hashes \
        -r requirements-page.txt -d "$wheel"
    .venv/bin/python tools/fetch_page.py "$wheel" $target
    rm -r "$wheel"
    printf '%s\n' "$want" >$target/stamp
}

# The generator of clients has its own environment: it needs an older typer.
make_generator() {
    local target=.venv/generator want
    want="$PWD $(cat requirements-client.txt)"
    [[ $(cat $target/setup-stamp 2>/dev/null) != "$want" ]] || return 0
    say "the generator of clients, for tests"
    .venv/bin/python -m venv --clear $target
    .venv/bin/uv pip install -q --python $target/bin/python --system-certs --require-hashes -r requirements-client.txt ||
        patiently $target/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-client.txt
    printf '%s\n' "$want" >$target/setup-stamp
}

# The registry that tests pull images from: its program alone, since its package would enable a service.
fetch_registry() {
    local target=.venv/bin/docker-registry work
    [[ ${1:-} == test && ! -x $target ]] && has apt-get || return 0
    say "docker-registry"
    work=$(mktemp -d)
    (cd "$work" && patiently apt-get -qq -o APT::Sandbox::User=root download docker-registry && dpkg-deb -x ./*.deb .)
    cp "$work/usr/bin/docker-registry" $target
    rm -r "$work"
}

install_packages "${1:-}"
make_venv
fetch_page
[[ ${1:-} != test ]] || make_generator
fetch_registry "${1:-}"
