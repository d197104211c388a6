#!/usr/bin/env bash
# Boots a Debian of packages alone, with systemd and unified cgroup v2, and runs tools/vm_cases.py in a clone of this tree there.
# Usage: [SUITE=trixie] [VM_TIMEOUT=7200] tools/vm_test.sh [CASE …]     (without one: all; without SUITE: bookworm)
# qemu emulates the machine in software, so it needs no KVM and is slow. It has no network: what comes from registries is
# installed before it boots. Its root is kept in VM_CACHE (/var/cache/skerry-vm), which makes the next run quicker.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'error: %s\n' "$*" >&2; exit 1; }
say() { printf '\033[2m» %4d s  %s\033[0m\n' "$SECONDS" "$*" >&2; }
[[ $EUID -eq 0 ]] || die "only root can make a file system with its own users and devices"

suite=${SUITE:-bookworm}
cache=${VM_CACHE:-/var/cache/skerry-vm}/$suite
limit=${VM_TIMEOUT:-7200}
shutdown_limit=30 # seconds between SIGTERM and the end; systemd waits 90 for what does not end
root=$cache/root
mkdir -p "$cache"
exec 9>"$cache/lock" && flock 9 # one run at a time: all share the root
work=$(mktemp -d /var/tmp/vm-test-XXXXXX)
vm=
trap '[[ -z $vm ]] || kill "$vm" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT

install_qemu() {
    local program
    for program in qemu-system-x86_64 mmdebstrap mkfs.ext4; do
        command -v "$program" >/dev/null && continue
        say "apt-get install qemu-system-x86"
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
            qemu-system-x86 seabios ipxe-qemu mmdebstrap e2fsprogs >/dev/null
        return
    done
}

# What a machine has, then what tools/setup.sh would install.
packages=linux-image-cloud-amd64,initramfs-tools,systemd-sysv,dbus,udev,kmod,make,git,ca-certificates,python3,python3-venv
packages+=,gcc,libc6-dev,musl-tools,crun,runc,nftables,iproute2,btrfs-progs,mmdebstrap,skopeo,umoci,curl,xz-utils,bzip2,zstd
packages+=,libseccomp2,procps,less,vim-tiny,sudo
make_root() {
    local own file
    [[ $(cat "$cache/packages" 2>/dev/null) != "$packages" ]] || return 0
    say "a root of $suite in $root"
    rm -rf --one-file-system "$root"
    own=$(. /etc/os-release && echo "$VERSION_CODENAME")
    shopt -s nullglob
    mkdir "$work/sources"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        [[ ! -s $file ]] || sed "s/\b$own\b/$suite/g" "$file" >"$work/sources/${file##*/}"
    done
    mmdebstrap -q --variant=minbase --include="$packages" "$suite" "$root" "$work"/sources/*.list "$work"/sources/*.sources
    printf '%s' "$packages" >"$cache/packages"
}

# `make setup` of a clone, in a chroot that can reach the package registries as this machine does.
set_up_clone() {
    local path
    for path in /etc/resolv.conf /etc/pip.conf ~/.config/pip ~/.npmrc /usr/local/share/ca-certificates; do
        [[ ! -e $path ]] || { mkdir -p "$root${path%/*}" && cp -rL "$path" "$root${path%/*}/"; }
    done
    chroot "$root" update-ca-certificates >/dev/null 2>&1
    if [[ -d $root/root/skerry/.git ]]; then
        git -C "$root/root/skerry" fetch -q "$PWD" HEAD && git -C "$root/root/skerry" reset -q --hard FETCH_HEAD
    else
        git clone -q . "$root/root/skerry"
    fi
    say "make setup of $(git -C "$root/root/skerry" log -1 --format='%h %s')"
    unshare --mount --propagation private bash -euc '
        mount --bind "$1" "$1"
        for path in proc dev opt; do mkdir -p "$1/$path"; mount --rbind "/$path" "$1/$path"; done
        exec chroot "$1" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
            SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt make -C /root/skerry setup' bash "$root" >"$work/setup.log" 2>&1 ||
        { tail -n 20 "$work/setup.log" >&2; die "make setup failed in $root"; }
}

make_disk() {
    local unit
    echo vm >"$root/etc/hostname"
    printf '127.0.0.1 localhost vm\n' >"$root/etc/hosts"
    printf '/dev/vda / ext4 defaults,noatime 0 1\n' >"$root/etc/fstab"
    for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer getty@tty1.service \
        serial-getty@ttyS0.service; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    : >"$root/root/vm-cases"
    (($# == 0)) || printf '%q ' "$@" >"$root/root/vm-cases"
    cat >"$root/etc/systemd/system/vm-test.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=exec
WorkingDirectory=/root/skerry
Environment=HOME=/root LANG=C.UTF-8 TERM=dumb PATH=/root/skerry/.venv/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=/bin/bash -c 'exec python tools/vm_cases.py $(cat /root/vm-cases)'
StandardOutput=file:/dev/ttyS1
StandardError=file:/dev/ttyS1
# the shutdown is measured with what this leaves running
KillMode=process
[Install]
WantedBy=graphical.target
END
    mkdir -p "$root/etc/systemd/system/graphical.target.wants"
    ln -sf ../vm-test.service "$root/etc/systemd/system/graphical.target.wants/vm-test.service"
    say "the disk"
    mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1 -d "$root" "$work/disk" 16G >/dev/null
}

# Boot the machine and show what the cases print, until it is off.
boot() {
    say "boot, at most $limit s; its console is $cache/console-$1"
    : >"$work/out-$1"
    timeout "$limit" qemu-system-x86_64 -machine q35 -cpu max -accel tcg,thread=multi -smp 2 -m 4096 -display none -no-reboot \
        -kernel "$root"/boot/vmlinuz-* -initrd "$root"/boot/initrd.img-* \
        -append "root=/dev/vda rw console=ttyS0 systemd.unified_cgroup_hierarchy=1 systemd.show_status=0" \
        -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe" -nic none -device virtio-rng-pci \
        -serial "file:$cache/console-$1" -serial "file:$work/out-$1" &
    vm=$!
    tail -n +1 -f --pid="$vm" "$work/out-$1" | sed -u 's,\r,,; /^row|/d'
    wait "$vm" || say "qemu ended with $?"
    vm=
    tr -d '\r' <"$work/out-$1" | sed -n 's/^row|//p' >>"$work/rows"
}

# How long the machine waited for processes after it had sent them SIGTERM, by the clock of its console.
measure_shutdown() {
    local waited
    waited=$(tr -d '\r' <"$cache/console-1" | sed 's/\x1b\[[0-9;]*m//g' | awk -F '[][]' '
        /systemd-shutdown\[1\]: Sending SIGTERM to remaining/ { began = $2 }
        began && /systemd-shutdown\[1\]: (Sending SIGKILL to remaining|Unmounting file systems)/ { print int($2 - began); exit }')
    if [[ -n $waited ]] && ((waited < shutdown_limit)); then
        echo "shutdown with a running sandbox|passed|$waited s after SIGTERM|" >>"$work/rows"
    else
        echo "shutdown with a running sandbox|FAILED|${waited:-?} s after SIGTERM|" >>"$work/rows"
    fi
}

install_qemu
make_root
set_up_clone
make_disk "$@"
: >"$work/rows"
boot 1
measure_shutdown
boot 2
ended=$(tr -d '\r' <"$work/out-2" | grep -c '^vm-test: complete$') || true
sed -n 's/^about|//p' "$work/out-1" | tr -d '\r'
{ echo 'case|result|what|expected under emulation, because' && cat "$work/rows"; } | column -t -s '|'
[[ $ended == 1 ]] || die "the machine did not finish: see $cache/console-1 and $cache/console-2"
! grep -q '|FAILED|' "$work/rows" || die "see above; the consoles are $cache/console-1 and $cache/console-2"
say "passed, except for expected failures"
