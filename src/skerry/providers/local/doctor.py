"""Checks what this machine can do for sandboxes, and says which command adds what is missing."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from skerry._model import Model
from skerry.core import ProviderUnavailable, Resources, SandboxSpec, SkerryError, home
from skerry.providers.local import host
from skerry.providers.local.engine import Engine
from skerry.providers.local.limits import network
from skerry.providers.local.limits.cgroup import Cgroups
from skerry.providers.local.storage import btrfs
from skerry.providers.local.storage.choose import choose, find_storage, missing_for_pool
from skerry.providers.local.storage.encrypted import EncryptedPool, missing_for_encryption

_LANDLOCK_CREATE_RULESET = 444  # on every architecture
_ASK_FOR_VERSION = 1
_TMPFS = 0x01021994


class Check(Model):
    """The result of one check. `fix` is a command or a sentence; None when there is nothing to do."""

    name: str
    ok: bool
    detail: str
    fix: str | None = None
    required: bool = True


def checks() -> list[Check]:
    """Every check, the most important first; the last one really runs a sandbox."""
    found = [_root(), _kernel(), _runtime(), _binaries(), _cgroups()]
    found += [_home(), _storage(), _encryption(), _landlock(), _egress(), _docker()]
    if all(check.ok for check in found if check.required):
        found.append(_real_sandbox())
    return found


def isolation_level() -> str:
    """The level a sandbox gets here: "container", or "none" when none can be run."""
    return "container" if all(check.ok for check in checks() if check.required) else "none"


def _attempt(name: str, look: Callable[[], str], *, required: bool = True) -> Check:
    try:
        return Check(name=name, ok=True, detail=look(), required=required)
    except SkerryError as error:
        return Check(name=name, ok=False, detail=str(error), fix=error.hint or None, required=required)
    except OSError as error:
        return Check(name=name, ok=False, detail=str(error), required=required)


def _root() -> Check:
    def look() -> str:
        host.require_root()
        return "running as root"

    return _attempt("root", look)


def _version() -> tuple[int, int]:
    major, minor = (int("".join(filter(str.isdigit, part)) or 0) for part in os.uname().release.split(".")[:2])
    return major, minor


def _kernel() -> Check:
    def look() -> str:
        release = os.uname().release
        if _version() < (5, 19):
            raise ProviderUnavailable(
                f"Linux {release}: overlay mounts of mapped ids need 5.19", hint="use a newer kernel"
            )
        for name in ("user", "pid", "net", "mnt", "ipc", "uts", "cgroup"):
            if not Path(f"/proc/self/ns/{name}").exists():
                raise ProviderUnavailable(f"this kernel has no {name} namespaces", hint="use another kernel")
        if not host.knows_filesystem("overlay"):
            raise ProviderUnavailable("this kernel has no overlayfs", hint="install its module: `modprobe overlay`")
        return f"Linux {release}, namespaces, overlayfs"

    return _attempt("kernel", look)


def _runtime() -> Check:
    def look() -> str:
        kind, path = host.runtime()
        version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout.splitlines()
        note = "" if kind == "crun" else " (works, several times slower than crun: apt-get install -y crun)"
        return f"{version[0] if version else kind}{note}"

    return _attempt("runtime", look)


def _binaries() -> Check:
    def look() -> str:
        for name in ("agent", "launcher", "dns", "seccomp.bpf"):
            host.binary(name)
        return "agent, launcher, forwarder and system call filter are built"

    return _attempt("binaries", look)


def _cgroups() -> Check:
    def look() -> str:
        cgroups = Cgroups.detect()
        cgroups.require(Resources(cpu=1, memory=1, pids=1))
        if os.geteuid() == 0:  # the check of the user has told the others
            cgroups.prepare()
        return f"{cgroups.mode}: memory, cpu and pids limits are enforced"

    return _attempt("cgroups", look)


def _home() -> Check:
    def look() -> str:
        path = home()
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        if not os.access(existing, os.W_OK):
            raise ProviderUnavailable(f"{existing} is not writable", hint="set SKERRY_HOME")
        if btrfs.magic(existing) == _TMPFS and _version() < (6, 3):
            raise ProviderUnavailable(
                f"{path} is on tmpfs, which takes mapped ids only since Linux 6.3",
                hint="set SKERRY_HOME to a directory on a disk",
            )
        free = shutil.disk_usage(existing).free
        if free < 256 << 20:
            raise ProviderUnavailable(f"only {free >> 20} MiB free under {path}", hint="free space, or set SKERRY_HOME")
        return f"{path}, {free >> 30} GiB free"

    return _attempt("home", look)


def _storage() -> Check:
    """The storage of the sandboxes' files, also before its first use; disk limits and quick snapshots need btrfs."""

    def look() -> str:
        path = home()
        there = find_storage(path) if path.is_dir() else None
        existing = next(each for each in (path, *path.parents) if each.exists())
        kind = there.kind if there else choose(existing)
        if kind == "directory":
            missing = missing_for_pool()
            raise ProviderUnavailable(
                f"plain directories, without disk limits and with slow snapshots{f': {missing}' if missing else ''}",
                hint="apt-get install -y btrfs-progs, use a new SKERRY_HOME; the kernel needs btrfs and loop devices",
            )
        if there is not None:
            there.prepare()
        if kind == "btrfs" and not btrfs.has_quotas(existing):
            raise ProviderUnavailable(
                f"btrfs with its quotas off: sandboxes in {path} have no disk limit",
                hint=f"btrfs quota enable {existing}",
            )
        return {"pool": "a btrfs pool in a file", "btrfs": "the btrfs file system of SKERRY_HOME"}[kind]

    return _attempt("storage", look, required=False)


def _encryption() -> Check:
    """Whether sandboxes can be created with `encrypted`; looks only, so it makes and mounts nothing."""

    def look() -> str:
        if missing := missing_for_encryption():
            raise ProviderUnavailable(f"encrypted=True cannot be had: this machine lacks {missing[0]}", hint=missing[1])
        pool = EncryptedPool(home())
        if not pool.container.exists():
            return "encrypted=True works: the first use makes an encrypted pool"
        return (
            "encrypted=True works: the pool is unlocked" if pool.ready() else "the encrypted pool is not unlocked yet"
        )

    return _attempt("encryption", look, required=False)


def _landlock() -> Check:
    """Without Landlock, a client that may only read a sandbox's files can also read its processes' variables."""

    def look() -> str:
        libc = ctypes.CDLL(None)
        if libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_FOR_VERSION)) < 2:
            raise ProviderUnavailable(
                "a client that may only read files can also read the variables of processes in /proc",
                hint="add landlock to lsm= on the kernel's command line, and boot again",
            )
        return "file calls cannot read the variables of processes"

    return _attempt("landlock", look, required=False)


def _egress() -> Check:
    def look() -> str:
        network.require()
        return "network='open' works: nftables, iproute2, name forwarder"

    return _attempt("egress", look, required=False)


def _docker() -> Check:
    path = shutil.which("dockerd")
    detail = "dockerd is installed (used by `make bench DOCKER=1` only)" if path else "not needed"
    return Check(name="docker", ok=True, detail=detail, required=False)


def _real_sandbox() -> Check:
    """The only proof: a sandbox whose agent answered."""

    def look() -> str:
        engine = Engine()
        info = engine.create(SandboxSpec(timeout=60.0, purpose="doctor"))
        engine.destroy(info.id)
        return "created a sandbox, got its answer and removed it"

    return _attempt("sandbox", look)
