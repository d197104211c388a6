#!/usr/bin/env bash
# Runs a command in a clone of this tree on a minimal Debian made for it, with make, git, certificates and nothing else.
# Usage: [SUITE=trixie] tools/new_machine.sh make test     (without SUITE: the release that this machine has)
# It has its own files and mounts, and this machine's kernel, network and processes. It gets what leads to the package
# registries: apt's sources, the settings of pip and npm, certificates, the resolver, and /opt, where an index may be.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'error: %s\n' "$*" >&2; exit 1; }
(($#)) || die "no command; for example: tools/new_machine.sh make test"
[[ $EUID -eq 0 ]] || die "only root can make a file system with its own users and devices"
command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: run \`make setup\`"

place=$(mktemp -d /var/tmp/new-machine-XXXXXX)
trap 'rm -rf --one-file-system "$place"' EXIT
root=$place/root
own=$(. /etc/os-release && echo "$VERSION_CODENAME")
suite=${SUITE:-$own}
printf '\033[2m» %s in %s\033[0m\n' "$suite" "$root" >&2
shopt -s nullglob
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [[ ! -s $file ]] || sed "s/\b$own\b/$suite/g" "$file" >"$place/${file##*/}"
done
mmdebstrap -q --variant=minbase --include=make,git,ca-certificates "$suite" "$root" "$place"/*.list "$place"/*.sources
for path in /etc/resolv.conf /etc/hosts /etc/pip.conf ~/.config/pip ~/.npmrc /usr/local/share/ca-certificates; do
    [[ ! -e $path ]] || { mkdir -p "$root${path%/*}" && cp -rL "$path" "$root${path%/*}/"; }
done
chroot "$root" update-ca-certificates >/dev/null 2>&1
git clone -q . "$root$HOME/skerry"
mkdir "$root/old"

# pivot_root, since a process in a chroot cannot make a user namespace.
unshare --mount --propagation private bash -euc '
    root=$1; shift
    mount --bind "$root" "$root"
    for path in proc sys dev opt; do mount --rbind "/$path" "$root/$path"; done
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    cd "$root" && pivot_root . old && cd / && umount -l old && rmdir old
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    cd ~/skerry && exec "$@"' bash "$root" "$@"
