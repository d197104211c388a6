"""The OCI configuration of a sandbox: namespaces, mounts, capabilities, filter."""

from __future__ import annotations

import base64
import os
import resource
from functools import cache
from pathlib import Path

from skerry.providers.local.host import binary
from skerry.providers.local.launch.seccomp import oci_rules
from skerry.providers.local.sandbox.folders import NETNS, USERNS, host_id
from skerry.providers.local.sandbox.record import Record

AGENT = "/.skerry/agent"
_CAPABILITIES = [
    f"CAP_{name}" for name in "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE SYS_CHROOT".split()
]
# To the kernel, the sandbox's root is another user than the machine's root and cannot read what only the latter may:
# only what everybody may read, or what belongs to the sandbox's own namespaces, needs covering.
_MASKED = (
    "/proc/acpi /proc/asound /proc/keys /proc/latency_stats /proc/timer_list /proc/scsi /proc/interrupts "
    "/proc/pressure /sys/block /sys/firmware /sys/devices/virtual/block /sys/devices/virtual/powercap /sys/fs/btrfs"
).split()
_READ_ONLY = ["/proc/sys"]
TERMINALS = 64
"""Pseudo-terminals that a sandbox may have at a time: the kernel has 3,072 for all sandboxes together."""


@cache
def open_file_limit(pids: int) -> int:
    """Files that one process may open, so that a sandbox full of processes cannot use up half of the machine's."""
    machine = int(Path("/proc/sys/fs/file-max").read_text())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = max(1024, min(65536, machine // 2 // pids))
    return share if hard == resource.RLIM_INFINITY else min(share, hard)


@cache
def _filter() -> str:
    return base64.b64encode(Path(binary("seccomp.bpf")).read_bytes()).decode()


def _existing(paths: list[str]) -> list[str]:
    """Those of `paths` that this kernel has now: each missing one saves a mount, and loading a module may add one."""
    return [path for path in paths if os.path.exists(path)]


def _mount(path: str, kind: str, *options: str) -> dict[str, object]:
    return {"destination": path, "type": kind, "source": kind, "options": ["nosuid", *options]}


def _mounts(memory: int) -> list[dict[str, object]]:
    shm = max(1 << 20, min(memory // 4, 1 << 30))
    return [
        _mount("/proc", "proc", "noexec", "nodev"),
        _mount("/dev", "tmpfs", "strictatime", "mode=755", "size=64k"),
        _mount("/dev/pts", "devpts", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", f"max={TERMINALS}"),
        _mount("/dev/shm", "tmpfs", "noexec", "nodev", "mode=1777", f"size={shm}"),
        _mount("/sys", "sysfs", "noexec", "nodev", "ro"),
    ]


def configuration(record: Record, root: Path, runtime: str) -> dict[str, object]:
    """The config.json for `record`, to be run by `runtime` with its root mounted at `root`."""
    limits = record.limits
    assert limits.memory is not None
    namespaces: list[dict[str, str]] = [{"type": name} for name in ("pid", "ipc", "uts", "mount", "cgroup")]
    namespaces += [{"type": "user", "path": str(USERNS)}, {"type": "network", "path": str(NETNS)}]
    linux: dict[str, object] = {
        "namespaces": namespaces,
        "maskedPaths": _existing(_MASKED),
        "readonlyPaths": _existing(_READ_ONLY),
        # free memory that nobody is attached to, or a killed program's segments would fill the limit for ever
        "sysctl": {"kernel.shm_rmid_forced": "1"},
    }
    configuration: dict[str, object] = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [AGENT, "3", "4", "5", "6"],
            "env": [],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": False},
        "hostname": record.name or record.id,
        "mounts": _mounts(limits.memory),
        "linux": linux,
    }
    if runtime == "crun":
        configuration["annotations"] = {"run.oci.seccomp_bpf_data": _filter()}
    else:
        linux["seccomp"] = oci_rules()
        linux["cgroupsPath"] = f"/skerry/{record.id}"
        # runc needs to know the id mapping of the namespace it joins
        assert record.slot is not None
        mapping = {"containerID": 0, "hostID": host_id(record.slot), "size": 65536}
        linux["uidMappings"] = linux["gidMappings"] = [mapping]
    return configuration
