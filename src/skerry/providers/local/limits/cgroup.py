"""Limits and accounting through cgroups: version 1, version 2, or a host that mixes them.

Each sandbox has one group, `skerry/ID`, in every hierarchy that carries one of the controllers used here.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

from skerry._model import Model
from skerry.core import ProviderUnavailable, Resources, Unsupported

GROUP = "skerry"
CONTROLLERS = ("memory", "cpu", "pids", "freezer", "cpuacct")
GIVEN = frozenset({"memory", "cpu", "pids"})
"""The controllers that a version 2 group must get from the group above it; it has the others anyway."""
_CPU_PERIOD = 100_000
_SOCKETS = "memory.kmem.tcp.limit_in_bytes"
"""Version 1 charges the buffers of TCP and UDP sockets to this separate counter, and only once it has a limit."""
_SOCKET_SHARE = 4
"""On version 1, socket buffers may take the memory limit divided by this, in addition to the memory limit itself."""
_LEAF = "init"
"""Takes the processes from the root of a cgroup namespace: a group with processes cannot give controllers away."""
_MOVES = 20


class Counters(Model, kw_only=False):
    """What the kernel counted for a sandbox."""

    cpu_seconds: float
    memory_used: int
    pids: int


class Hierarchy(Model, kw_only=False):
    """One mounted cgroup file system and the controllers on it."""

    path: Path
    version: int
    controllers: frozenset[str]


class Cgroups:
    """This machine's hierarchies, and the sandboxes' groups in them."""

    def __init__(self, hierarchies: list[Hierarchy], mask: Path | None) -> None:
        self.hierarchies = hierarchies
        self.mask = mask
        """A cgroup2 mount beside version 1 ones: crun refuses to work while it sees it."""

    @classmethod
    def detect(cls, mountinfo: str | None = None, root: Path = Path("/")) -> Cgroups:
        """Read the mounts of this machine (or of a test's fake tree under `root`)."""
        text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
        hierarchies: list[Hierarchy] = []
        unified: Path | None = None
        for line in text.splitlines():
            left, _, right = line.partition(" - ")
            path = root / left.split()[4].lstrip("/")
            kind, _, options = right.split()[:3]
            if kind == "cgroup":
                found = frozenset(options.split(",")) & frozenset(CONTROLLERS)
                if found and not any(found <= known.controllers for known in hierarchies):
                    hierarchies.append(Hierarchy(path, 1, found))
            elif kind == "cgroup2" and unified is None:
                unified = path
        mixed = bool(hierarchies)
        if unified is not None:
            taken = frozenset(name for known in hierarchies for name in known.controllers)
            offered = frozenset((unified / "cgroup.controllers").read_text().split())
            found = (offered & frozenset(CONTROLLERS)) - taken
            if found or not mixed:
                # a version 2 group can always be frozen and always counts its processor time
                hierarchies.append(Hierarchy(unified, 2, found | ({"freezer", "cpuacct"} - taken)))
        return cls(hierarchies, unified if mixed else None)

    @property
    def mode(self) -> str:
        versions = {known.version for known in self.hierarchies}
        if versions == {2}:
            return "v2"
        return "none" if not versions else ("v1" if self.mask is None else "hybrid")

    def _with(self, controller: str) -> Hierarchy | None:
        return next((known for known in self.hierarchies if controller in known.controllers), None)

    def require(self, limits: Resources) -> None:
        """Raises Unsupported for a limit that no controller here can enforce."""
        for name, value in (("memory", limits.memory), ("cpu", limits.cpu), ("pids", limits.pids)):
            if value is not None and self._with(name) is None:
                raise Unsupported(
                    f"this machine cannot enforce the limit {name!r}: its kernel has no {name} cgroup controller",
                    option=name,
                    hint="run `skerry doctor`",
                )
        memory = self._with("memory")
        if limits.memory is not None and memory is not None and not self._charges_sockets(memory):
            raise Unsupported(
                f"this machine cannot enforce the limit 'memory' for socket buffers: its kernel has no {_SOCKETS}",
                option="memory",
                hint="boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1), which counts them as memory",
            )

    @staticmethod
    def _charges_sockets(memory: Hierarchy) -> bool:
        return memory.version == 2 or (memory.path / _SOCKETS).exists()

    def group(self, hierarchy: Hierarchy, sandbox_id: str) -> Path:
        return Path(f"{hierarchy.path}/{GROUP}/{sandbox_id}")  # called often: half the time of two `/`

    def _file(self, controller: str, sandbox_id: str, version1: str, version2: str) -> Path:
        hierarchy = self._with(controller)
        if hierarchy is None:
            raise ProviderUnavailable(f"this machine has no {controller} cgroup controller")
        return self.group(hierarchy, sandbox_id) / (version1 if hierarchy.version == 1 else version2)

    def memory_used(self) -> int | None:
        """Bytes that all sandboxes of this machine use together; None where nothing counts them."""
        try:
            return int(self._file("memory", ".", "memory.usage_in_bytes", "memory.current").read_text())
        except (OSError, ProviderUnavailable):
            return None

    def prepare(self) -> None:
        """Make the parent of the sandboxes' groups in each hierarchy; what is there already stays.

        Raises ProviderUnavailable.
        """
        for hierarchy in self.hierarchies:
            self._make_parent(hierarchy)
            parent = hierarchy.path / GROUP
            if not os.access(parent, os.W_OK):
                raise _unusable(parent, OSError(errno.EROFS, os.strerror(errno.EROFS)))

    def create(self, sandbox_id: str, limits: Resources) -> None:
        """Make the sandbox's groups and set its limits. Raises ProviderUnavailable, Unsupported, FileExistsError."""
        for hierarchy in self.hierarchies:
            group = self.group(hierarchy, sandbox_id)
            try:
                self._make_group(group)
            except FileNotFoundError:
                self._make_parent(hierarchy)
                self._make_group(group)
        try:
            self.set_limits(sandbox_id, limits)
        except FileNotFoundError:
            # The process that made the parent group has not given it its controllers yet, or died before it did.
            self.prepare()
            try:
                self.set_limits(sandbox_id, limits)
            except FileNotFoundError as error:
                raise ProviderUnavailable(
                    f"the kernel made no {error.filename}: its cgroup has no such controller",
                    hint="run `skerry doctor`",
                ) from error

    @staticmethod
    def _make_group(group: Path) -> None:
        try:
            group.mkdir()
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            raise _unusable(group, error) from error

    def _make_parent(self, hierarchy: Hierarchy) -> None:
        parent = hierarchy.path / GROUP
        try:
            parent.mkdir(exist_ok=True)
            if hierarchy.version == 2:
                self._give_controllers(hierarchy, parent)
        except OSError as error:
            raise _unusable(parent, error) from error

    @staticmethod
    def _give_controllers(hierarchy: Hierarchy, parent: Path) -> None:
        wanted = " ".join(f"+{name}" for name in sorted(hierarchy.controllers & GIVEN))
        # Only the machine's own root, which has no type, may have both processes and groups with controllers. The root
        # of a cgroup namespace, as in a container, may not: its processes move one level down.
        inner = (hierarchy.path / "cgroup.type").exists()
        for attempt in range(_MOVES):
            if inner:
                _move_processes(hierarchy.path, hierarchy.path / _LEAF)
            try:
                (hierarchy.path / "cgroup.subtree_control").write_text(wanted)
                break
            except OSError as error:
                if error.errno != errno.EBUSY or attempt == _MOVES - 1:
                    raise  # EBUSY: a new process has come
        (parent / "cgroup.subtree_control").write_text(wanted)

    def set_limits(self, sandbox_id: str, limits: Resources) -> None:
        """Apply the limits that are not None. Raises Unsupported for one the kernel refuses."""
        if limits.memory is not None:
            self._set_memory(sandbox_id, limits.memory)
        if limits.cpu is not None:
            quota = max(1000, int(limits.cpu * _CPU_PERIOD))
            file = self._file("cpu", sandbox_id, "cpu.cfs_quota_us", "cpu.max")
            _write(file, f"{quota} {_CPU_PERIOD}" if file.name == "cpu.max" else str(quota))
        if limits.pids is not None:
            _write(self._file("pids", sandbox_id, "pids.max", "pids.max"), str(limits.pids))

    def _set_memory(self, sandbox_id: str, size: int) -> None:
        file = self._file("memory", sandbox_id, "memory.limit_in_bytes", "memory.max")
        if file.name == "memory.max":
            _write(file, str(size))
            swap = file.parent / "memory.swap.max"
            if swap.exists():
                _write(swap, "0")
            return
        sockets = file.parent / _SOCKETS
        before = sockets.read_text()
        _write(sockets, str(size // _SOCKET_SHARE))
        try:
            _set_memory_and_swap(file, size)
        except Unsupported:
            _write(sockets, before)
            raise

    def join_files(self, sandbox_id: str) -> list[Path]:
        """Where the launcher writes itself: `tasks` moves one thread without the kernel's global fork lock."""
        return [
            self.group(hierarchy, sandbox_id) / ("tasks" if hierarchy.version == 1 else "cgroup.procs")
            for hierarchy in self.hierarchies
        ]

    def oom_file(self, sandbox_id: str) -> Path:
        """The file with the kernel's count of processes killed for memory."""
        return self._file("memory", sandbox_id, "memory.oom_control", "memory.events")

    def counters(self, sandbox_id: str) -> Counters:
        """Raises FileNotFoundError when the sandbox has no group."""
        memory = self._file("memory", sandbox_id, "memory.usage_in_bytes", "memory.current")
        stat = _table(memory.parent / "memory.stat")
        cache = stat.get("total_inactive_file", stat.get("inactive_file", 0))
        cpu = self._file("cpuacct", sandbox_id, "cpuacct.usage", "cpu.stat")
        seconds = _table(cpu)["usage_usec"] / 1e6 if cpu.name == "cpu.stat" else int(cpu.read_text()) / 1e9
        pids = self._file("pids", sandbox_id, "pids.current", "pids.current")
        return Counters(seconds, max(0, int(memory.read_text()) - cache), int(pids.read_text()))

    def dirty(self, sandbox_id: str) -> int:
        """Bytes of files that wait to be written back. Raises FileNotFoundError when there is no group."""
        memory = self._file("memory", sandbox_id, "memory.usage_in_bytes", "memory.current")
        stat = _table(memory.parent / "memory.stat")
        return stat.get("total_dirty", stat.get("file_dirty", 0))

    def freeze(self, sandbox_id: str, timeout: float = 10.0) -> None:
        """Freeze every process, and wait until all stand still.

        Raises ProviderUnavailable, and FileNotFoundError when there is no group.
        """
        self._set_frozen(sandbox_id, frozen=True)
        start, pause = time.monotonic(), 0.0001
        while not self.frozen(sandbox_id):
            waited = time.monotonic() - start
            if waited > timeout:
                self._set_frozen(sandbox_id, frozen=False)
                raise ProviderUnavailable(f"processes of {sandbox_id} could not be frozen within {timeout:g} s")
            # The kernel gives no notice. It takes microseconds, unless a process waits for a disk.
            if waited < 0.001:
                os.sched_yield()
                continue
            time.sleep(pause)
            pause = min(pause * 2, 0.01)
            # Version 1 misses a parent that begins to wait for its vfork at this moment, until it gets the order again.
            self._set_frozen(sandbox_id, frozen=True)

    def thaw(self, sandbox_id: str) -> None:
        """Let every process continue; without a group there is nothing to do."""
        try:
            self._set_frozen(sandbox_id, frozen=False)
        except FileNotFoundError:
            pass

    def frozen(self, sandbox_id: str) -> bool:
        """Whether every process stands still. Raises FileNotFoundError when there is no group."""
        file = self._freezer(sandbox_id)
        if file.name == "freezer.state":
            return file.read_text().strip() == "FROZEN"
        return _table(file.parent / "cgroup.events").get("frozen") == 1

    def _freezer(self, sandbox_id: str) -> Path:
        return self._file("freezer", sandbox_id, "freezer.state", "cgroup.freeze")

    def _set_frozen(self, sandbox_id: str, *, frozen: bool) -> None:
        file = self._freezer(sandbox_id)
        words = ("THAWED", "FROZEN") if file.name == "freezer.state" else ("0", "1")
        _write(file, words[frozen])

    def remove(self, sandbox_id: str, timeout: float = 10.0) -> None:
        """Kill what is in the groups and remove them. Raises ProviderUnavailable when something will not die."""
        deadline = time.monotonic() + timeout
        for path in self._all_groups(sandbox_id):
            pause = 0.0005
            while not _remove_group(path):
                if time.monotonic() > deadline:
                    raise ProviderUnavailable(f"processes of {sandbox_id} do not die: see {path}/cgroup.procs")
                self._kill(path)
                time.sleep(pause)  # the kernel does not say when a group is empty
                pause = min(pause * 2, 0.02)

    def exists(self, sandbox_id: str) -> bool:
        """Whether there is a group of the sandbox, and so perhaps a process."""
        return any(path.exists() for path in self._all_groups(sandbox_id))

    def _all_groups(self, sandbox_id: str) -> list[Path]:
        """Every group of this name: runc makes one in each hierarchy of the machine, used here or not."""
        paths = [self.group(hierarchy, sandbox_id) for hierarchy in self.hierarchies]
        if any(hierarchy.version == 1 for hierarchy in self.hierarchies):
            base = self.hierarchies[0].path.parent
            paths += [path for path in base.glob(f"*/{GROUP}/{sandbox_id}") if path not in paths]
        return paths

    def _kill(self, group: Path) -> None:
        for path in (group, *group.glob("**/")):
            try:
                pids = (path / "cgroup.procs").read_text().split()
            except FileNotFoundError:
                continue
            for pid in map(int, pids):
                # 0 is a process of another pid namespace, which has no pid here
                if pid > 0 and pid != os.getpid():
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass


def _write(path: Path, text: str) -> None:
    """Raises Unsupported: a limit that cannot be set is not a limit."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unsupported(f"the kernel refused {text} for {path.name}: {error.strerror}", option=path.name) from error


def _set_memory_and_swap(memory: Path, size: int) -> None:
    with_swap = memory.parent / "memory.memsw.limit_in_bytes"
    try:
        _write(memory, str(size))
    except Unsupported:  # the limit of memory may never exceed that of memory plus swap: raise the latter first
        _write(with_swap, str(size))
        _write(memory, str(size))
    try:
        _write(with_swap, str(size))
    except FileNotFoundError:
        pass  # a kernel that does not count swap


def _move_processes(source: Path, target: Path) -> None:
    """Raises OSError, ProviderUnavailable for a process that has no pid here."""
    pids = (source / "cgroup.procs").read_text().split()
    if pids:
        target.mkdir(exist_ok=True)
    for pid in pids:
        if pid == "0":
            raise ProviderUnavailable(
                f"{source} has processes of another pid namespace, so no group below it can have limits",
                hint="run Skerry in a private cgroup namespace: `docker run --privileged --cgroupns=private`",
            )
        try:
            (target / "cgroup.procs").write_text(pid)
        except ProcessLookupError:
            pass  # it has ended


def _unusable(group: Path, error: OSError) -> ProviderUnavailable:
    hints = {
        errno.EROFS: "mount it writable: a service needs ProtectControlGroups=no, a container --privileged",
        errno.EACCES: "local sandboxes need root and a writable cgroup file system",
        errno.EPERM: "local sandboxes need root and a writable cgroup file system",
        errno.EBUSY: "it has processes, so it cannot pass its controllers on: start Skerry in a separate group",
    }
    return ProviderUnavailable(
        f"the cgroup {group} cannot be used: {error.strerror}", hint=hints.get(error.errno or 0, "run `skerry doctor`")
    )


def _remove_group(path: Path) -> bool:
    """Remove a group and the empty ones below it; returns whether it is gone."""
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.EROFS:  # the kernel says so before it looks whether the group exists
            if not path.exists():
                return True
            raise _unusable(path, error) from error
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
        for child in path.glob("*/"):
            _remove_group(child)
        return False
    return True


def _table(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}
