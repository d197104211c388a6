"""Cgroups on version 1, version 2 and mixed hosts, against fake trees; the real ones are used by every sandbox test."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.core.errors import ProviderUnavailable, Unsupported
from skerry.core.models import Resources
from skerry.providers.local.limits import cgroup
from skerry.providers.local.limits.cgroup import Cgroups, Hierarchy
from tests.inventory import sandbox_groups

V1 = "\n".join(
    f"{number} 1 0:{number} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"
    for number, name in enumerate(("cpu", "cpuacct", "memory", "pids", "freezer", "devices", "blkio"), start=30)
)
UNIFIED = "50 1 0:50 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
V2 = "50 1 0:50 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
ID = "sb-aaaaaaaaaa"
SOCKETS = "memory.kmem.tcp.limit_in_bytes"


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
    (group / SOCKETS).write_text("100")
    cgroups.set_limits(ID, Resources(memory=500))
    assert (group / "memory.limit_in_bytes").read_text().startswith("500")
    assert (group / "memory.memsw.limit_in_bytes").read_text().startswith("500")


@pytest.mark.parametrize("parent", ["skerry", "memory/skerry"])
def test_what_a_test_leaves_behind_is_seen_on_both_versions(tmp_path: Path, parent: str) -> None:
    (tmp_path / parent / ID).mkdir(parents=True)
    assert list(sandbox_groups(tmp_path)) == [tmp_path / parent / ID]


def test_v1_limits_the_buffers_of_sockets_and_changes_that_limit_too(tmp_path: Path) -> None:
    cgroups = Cgroups.detect(V1, tmp_path)
    group = tmp_path / "sys/fs/cgroup/memory/skerry" / ID
    group.mkdir(parents=True)
    fill(group, f"memory.limit_in_bytes memory.memsw.limit_in_bytes {SOCKETS}")
    cgroups.set_limits(ID, Resources(memory=1000))
    assert (group / SOCKETS).read_text() == "250"
    cgroups.set_limits(ID, Resources(memory=8000))
    assert (group / SOCKETS).read_text() == "2000"
    cgroups.set_limits(ID, Resources(cpu=None, pids=None))
    assert (group / SOCKETS).read_text() == "2000"


def test_v1_without_a_limit_for_sockets_refuses_a_memory_limit(tmp_path: Path) -> None:
    memory = tmp_path / "sys/fs/cgroup/memory"
    memory.mkdir(parents=True)
    cgroups = Cgroups.detect(V1, tmp_path)
    cgroups.require(Resources(cpu=1, pids=10))
    with pytest.raises(Unsupported, match="socket buffers"):
        cgroups.require(Resources(memory=1 << 30))
    fill(memory, SOCKETS)
    cgroups.require(Resources(memory=1 << 30))


@pytest.fixture
def processes_above() -> Iterator[tuple[Hierarchy, int]]:
    """A real version 2 group that has a process and a controller to give away, as the root of a container's."""
    line = next(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line)
    root = Path(line.split()[4])
    controller = next(name for name in ("pids", "hugetlb") if name in (root / "cgroup.controllers").read_text().split())
    was = controller in (root / "cgroup.subtree_control").read_text().split()
    (root / "cgroup.subtree_control").write_text(f"+{controller}")
    top = root / f"test-{secrets.token_hex(4)}"
    top.mkdir()
    with subprocess.Popen(["sleep", "60"]) as process:
        (top / "cgroup.procs").write_text(str(process.pid))
        try:
            yield Hierarchy(top, 2, frozenset({controller})), process.pid
        finally:
            process.kill()
            process.wait()
            for group in (top / "skerry", top / "init", top):
                if group.is_dir():
                    group.rmdir()
            if not was:
                (root / "cgroup.subtree_control").write_text(f"-{controller}")


def test_v2_moves_the_processes_of_a_root_that_is_not_the_machines(
    processes_above: tuple[Hierarchy, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    hierarchy, pid = processes_above
    monkeypatch.setattr(cgroup, "GIVEN", hierarchy.controllers, raising=False)
    for _ in range(2):  # what is done already is no reason to fail
        Cgroups([hierarchy], None).prepare()
    assert (hierarchy.path / "init/cgroup.procs").read_text().split() == [str(pid)]
    assert (hierarchy.path / "skerry/cgroup.subtree_control").read_text().split() == sorted(hierarchy.controllers)


def test_v2_completes_a_parent_that_was_left_without_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroups = v2_tree(tmp_path)
    group = cgroups.group(cgroups.hierarchies[0], ID)
    make = Cgroups._make_parent

    def as_the_kernel_does(self: Cgroups, hierarchy: Hierarchy) -> None:
        make(self, hierarchy)
        assert (group.parent / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
        fill(group, "memory.max cpu.max pids.max")

    monkeypatch.setattr(Cgroups, "_make_parent", as_the_kernel_does)
    cgroups.create(ID, Resources(cpu=1, memory=1 << 30, pids=64))
    assert (group / "memory.max").read_text() == str(1 << 30)


def test_a_group_that_never_gets_its_controllers_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ProviderUnavailable, match=r"memory\.max"):
        v2_tree(tmp_path).create(ID, Resources(memory=1 << 30))


def test_a_read_only_cgroup_file_system_is_a_typed_error(tmp_path: Path) -> None:
    """As a service with ProtectControlGroups=yes has it."""
    v2_tree(tmp_path)
    (tmp_path / "sys/fs/cgroup/skerry").rename(tmp_path / "away")
    code = f"""
import sys
from pathlib import Path
from skerry.core.errors import ProviderUnavailable
from skerry.core.models import Resources
from skerry.providers.local.limits.cgroup import Cgroups
try:
    cgroups = Cgroups.detect({V2!r}, Path({str(tmp_path)!r}))
    cgroups.remove({ID!r})
    cgroups.create({ID!r}, Resources(memory=1))
except ProviderUnavailable as error:
    print(error.message, error.hint)
"""
    mount = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path}"
    script = f'{mount} && exec "$0" "$@"'
    command = ["unshare", "-m", "sh", "-c", script, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Read-only file system" in done.stdout and "ProtectControlGroups" in done.stdout, done
