"""Looks on the host for anything that is left of our sandboxes."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
SLOTS = Path("/run/skerry/slots")


def leftovers(home: Path, ids: Set[str]) -> list[str]:
    """Folders, id ranges, cgroups, mounts and processes of the sandboxes `ids` under `home`; empty when clean."""
    found = [
        f"folder {path}"
        for part in ("sandboxes", "names", "keys", "pool/uppers", "pool/snapshots")
        for path in sorted((home / part).glob("*"))
    ]
    if SLOTS.is_dir():
        found += [f"id range {link}" for link in SLOTS.iterdir() if Path(os.readlink(link)).is_relative_to(home)]
    groups = [*CGROUPS.glob("*/skerry/sb-*"), *CGROUPS.glob("skerry/sb-*")]
    found += [f"cgroup {group}" for group in groups if group.name in ids]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [Path(line.split()[4]) for line in mounts]
    # the pool itself belongs to no sandbox: it stays mounted as long as its home exists
    found += [f"mount {place}" for place in places if place.is_relative_to(home) and place != home / "pool"]
    return found + [f"process {line}" for line in _processes(home)]


def _processes(home: Path) -> list[str]:
    """Processes with a path under `home` on their command line: launchers and runtimes."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.fsencode(home) in command:
            found.append(f"{entry.name}: {command.replace(bytes(1), b' ').decode(errors='replace')[:200]}")
    return found
