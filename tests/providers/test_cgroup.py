"""Cgroups on version 1, version 2 and mixed hosts, against fake trees; the real ones are used by every sandbox test."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.core.errors import Unsupported
from skerry.core.models import Resources
from skerry.providers.local.cgroup import Cgroups

V1 = "\n".join(
    f"{number} 1 0:{number} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"
    for number, name in enumerate(("cpu", "cpuacct", "memory", "pids", "freezer", "devices", "blkio"), start=30)
)
UNIFIED = "50 1 0:50 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
V2 = "50 1 0:50 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
ID = "sb-aaaaaaaaaa"


def v2_tree(root: Path, controllers: str = "cpuset cpu io memory pids") -> Cgroups:
    base = root / "sys/fs/cgroup"
    for path in (base, base / "skerry"):
        path.mkdir(parents=True)
        (path / "cgroup.controllers").write_text(controllers)
        (path / "cgroup.subtree_control").write_text("")
    return Cgroups.detect(V2, root)


def fill(group: Path, names: str) -> None:
    """What the kernel would put into a group."""
    for name in names.split():
        (group / name).write_text("")


def test_v1_uses_one_hierarchy_per_controller_and_masks_nothing(tmp_path: Path) -> None:
    cgroups = Cgroups.detect(V1, tmp_path)
    assert cgroups.mode == "v1"
    assert cgroups.mask is None
    assert {str(h.path.name) for h in cgroups.hierarchies} == {"cpu", "cpuacct", "memory", "pids", "freezer"}


def test_mixed_host_masks_the_empty_cgroup2(tmp_path: Path) -> None:
    unified = tmp_path / "sys/fs/cgroup/unified"
    unified.mkdir(parents=True)
    (unified / "cgroup.controllers").write_text("")
    cgroups = Cgroups.detect(f"{V1}\n{UNIFIED}", tmp_path)
    assert cgroups.mode == "hybrid"
    assert cgroups.mask == unified
    assert all(h.version == 1 for h in cgroups.hierarchies)


def test_co_mounted_controllers_are_one_hierarchy(tmp_path: Path) -> None:
    text = "30 1 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
    cgroups = Cgroups.detect(text, tmp_path)
    assert len(cgroups.hierarchies) == 1
    assert cgroups.hierarchies[0].controllers == {"cpu", "cpuacct"}


def test_v2_delegates_controllers_and_writes_limits(tmp_path: Path) -> None:
    cgroups = v2_tree(tmp_path)
    assert cgroups.mode == "v2"
    group = cgroups.group(cgroups.hierarchies[0], ID)
    group.mkdir()
    fill(group, "memory.max memory.swap.max cpu.max pids.max")
    cgroups._make_parent(cgroups.hierarchies[0])
    cgroups.set_limits(ID, Resources(cpu=1.5, memory=1 << 30, pids=64))
    assert (group.parent / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (group.parent.parent / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (group / "memory.max").read_text() == str(1 << 30)
    assert (group / "memory.swap.max").read_text() == "0"
    assert (group / "cpu.max").read_text() == "150000 100000"
    assert (group / "pids.max").read_text() == "64"


def test_v2_counts_memory_without_reclaimable_cache(tmp_path: Path) -> None:
    cgroups = v2_tree(tmp_path)
    group = cgroups.group(cgroups.hierarchies[0], ID)
    group.mkdir()
    (group / "memory.current").write_text("1000\n")
    (group / "memory.stat").write_text("anon 600\ninactive_file 300\n")
    (group / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (group / "pids.current").write_text("7\n")
    counters = cgroups.counters(ID)
    assert (counters.memory_used, counters.cpu_seconds, counters.pids) == (700, 2.5, 7)
    assert cgroups.oom_file(ID) == group / "memory.events"
    assert cgroups.join_files(ID) == [group / "cgroup.procs"]


def test_a_limit_without_its_controller_raises(tmp_path: Path) -> None:
    cgroups = v2_tree(tmp_path, controllers="cpu memory")
    cgroups.require(Resources(cpu=1, memory=1))
    with pytest.raises(Unsupported, match="pids"):
        cgroups.require(Resources(pids=10))


def test_v1_limits_memory_with_and_without_swap_alike(tmp_path: Path) -> None:
    cgroups = Cgroups.detect(V1, tmp_path)
    group = tmp_path / "sys/fs/cgroup/memory/skerry" / ID
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("100")
    (group / "memory.memsw.limit_in_bytes").write_text("100")
    cgroups.set_limits(ID, Resources(memory=500))
    assert (group / "memory.limit_in_bytes").read_text().startswith("500")
    assert (group / "memory.memsw.limit_in_bytes").read_text().startswith("500")
