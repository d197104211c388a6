"""Counts on the host everything a sandbox is made of, so that tests can say "nothing is left" and mean it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from skerry.providers.local.host import BINARIES

ENCRYPTED = ("encrypted/uppers", "encrypted/snapshots", "encrypted/volumes")
AGENT_ARGUMENT = b"/.skerry/agent"
PROGRAMS = {os.fsencode(BINARIES / name) for name in ("agent", "launcher", "dns")}
"""Those of this source tree: another one may be at work on the same machine."""

POOL = re.compile(r"/(pool|encrypted) btrfs |/encrypted\.disk ext4 ")
"""The mounts of pools: see `take`."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is there now. `processes` are those of sandboxes alone, by pid."""

    processes: frozenset[int]
    mounts: int
    cgroups: frozenset[str]
    namespaces: int
    devices: frozenset[str]
    loops: frozenset[str]
    folders: frozenset[str]
    foreign: frozenset[str]
    """The sandboxes and devices of other homes, which are not among these."""

    def counts(self) -> dict[str, int]:
        return {
            "processes": len(self.processes),
            "mounts": self.mounts,
            "cgroups": len(self.cgroups),
            "namespaces": self.namespaces,
            "network devices": len(self.devices),
            "loop devices": len(self.loops),
            "folders and links": len(self.folders),
        }


def left(before: Inventory, after: Inventory) -> dict[str, object]:
    """What is there now and was not before; fewer of something, as when somebody else has ended, is no leak."""
    found: dict[str, object] = {
        name: more
        for name in ("processes", "cgroups", "devices", "loops", "folders")
        if (more := getattr(after, name) - getattr(before, name))
    }
    for name in ("mounts", "namespaces"):
        if getattr(after, name) > getattr(before, name):
            found[name] = getattr(after, name) - getattr(before, name)
    return found


def take(home: Path, known: frozenset[str] = frozenset()) -> Inventory:
    """Everything but what belongs to sandboxes of another SKERRY_HOME, which somebody else may be using.

    `known` are foreign ones from before: what is left of one that is just being swept does not become ours.
    """
    foreign = _foreign(home) | known
    groups = list(sandbox_groups(Path("/sys/fs/cgroup")))
    seen = list(_sandbox_processes())
    devices = frozenset(os.listdir("/sys/class/net"))
    foreign |= _foreign(home)  # those that came meanwhile
    strangers = {pid for pid, owner in seen if any(name in owner for name in foreign)}
    return Inventory(
        processes=frozenset(pid for pid, _ in seen) - strangers,
        # a pool stays mounted from the first use of its SKERRY_HOME on: it is no sandbox's
        mounts=sum(not POOL.search(line) for line in Path("/proc/self/mounts").read_text().splitlines()),
        cgroups=frozenset(str(path) for path in groups if path.name not in foreign),
        namespaces=len(set(_namespaces(strangers))),
        devices=devices - foreign,
        loops=frozenset(_loops()),
        folders=frozenset(_folders(home)),
        foreign=frozenset(foreign),
    )


def sandbox_groups(root: Path) -> Iterator[Path]:
    """The groups of sandboxes: in each hierarchy of version 1, and in the one of version 2."""
    for pattern in ("skerry/sb-*", "*/skerry/sb-*"):
        yield from root.glob(pattern)


def settle(home: Path, before: Inventory, timeout: float = 10.0) -> Inventory:
    """The inventory once nothing is left, or what it is when time is up: the kernel frees namespaces a little later."""
    deadline = time.monotonic() + timeout
    while True:
        now = take(home, before.foreign)
        if not left(before, now) or time.monotonic() > deadline:
            return now
        time.sleep(0.02)


def _loops() -> Iterator[str]:
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if not path.read_text().strip().endswith(("/pool.img", "/encrypted.img")):
                yield str(path)
        except OSError:
            pass  # detached meanwhile


def _foreign(home: Path) -> set[str]:
    """The ids of sandboxes of other homes, and their network devices, which have the number of the id range."""
    found = set()
    slots = Path("/run/skerry/slots")
    for link in slots.iterdir() if slots.is_dir() else ():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if not target.startswith(f"{home}/"):
            found |= {os.path.basename(target), f"skv{link.name}"}
    return found


def _sandbox_processes() -> Iterable[tuple[int, str]]:
    """Every process of a sandbox, or at work for one, with what tells whose it is."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            cgroup = Path(f"/proc/{name}/cgroup").read_text()
            command = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = command[0] in PROGRAMS
        if "/skerry/sb-" in cgroup or command[0] == AGENT_ARGUMENT or ours:
            yield int(name), cgroup + repr(command)


def processes_of(sandbox_id: str) -> set[int]:
    """The processes in a sandbox's cgroup."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"/skerry/{sandbox_id}" in Path(f"/proc/{name}/cgroup").read_text():
                found.add(int(name))
        except OSError:
            continue
    return found


def first_process_of(sandbox_id: str) -> int:
    """The one that is 1 inside; numbers on the host begin again, so it need not have the lowest."""
    for pid in processes_of(sandbox_id):
        if re.search(r"^NSpid:.*\t1$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE):
            return pid
    raise LookupError(sandbox_id)


def _namespaces(strangers: set[int]) -> Iterable[str]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(name) in strangers:
                continue
            for kind in os.listdir(f"/proc/{name}/ns"):
                yield os.readlink(f"/proc/{name}/ns/{kind}")
        except OSError:
            continue


def _folders(home: Path) -> Iterable[str]:
    kept = ("sandboxes", "names", "keys", "trash", "snapshots", "volumes")
    for part in (*kept, "pool/uppers", "pool/snapshots", "pool/volumes", "pool/layers", *ENCRYPTED):
        if (home / part).is_dir():
            # the lock of all that is there is made when it is first needed, and stays
            yield from (f"{part}/{name}" for name in os.listdir(home / part) if name != "lock")
    yield from (f"templates/{path.name}" for path in (home / "templates").glob("*.*") if not path.is_dir())
    slots = Path("/run/skerry/slots")
    if slots.is_dir():
        for link in slots.iterdir():
            try:
                if os.readlink(link).startswith(str(home)):
                    yield f"slots/{link.name}"
            except FileNotFoundError:
                continue
