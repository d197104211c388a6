"""Starts a sandbox: socket, boot message, launcher, runtime, and the agent's first message."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from functools import cache
from pathlib import Path

from skerry._model import Model
from skerry.core import (
    Conflict,
    Corrupted,
    DiskFull,
    HelloReader,
    ProviderUnavailable,
    SandboxFailed,
    Timeout,
    hello_frame,
)
from skerry.providers.local.host import ProcessId, binary
from skerry.providers.local.launch.bundle import AGENT, configuration, open_file_limit
from skerry.providers.local.limits.cgroup import Cgroups
from skerry.providers.local.locks import FileLock
from skerry.providers.local.sandbox.folders import EMPTY, NETNS, ROOT, USERNS, host_id
from skerry.providers.local.sandbox.last_words import idle_limit
from skerry.providers.local.sandbox.record import Record, variables
from skerry.providers.local.storage import host_layer
from skerry.wire import Boot, Hello, Type, encode_frame

READY_TIMEOUT = 30.0
_REFUSED = "refused: "
"""How the launcher's message begins when something in the sandbox's own files is in the way."""
INOTIFY_INSTANCES = 128
_LOCK_FD, _GO_FD = 21, 22
_READ_ONLY = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    # The runtime runs from a read-only mount, so what it starts cannot overwrite it: it need not copy and re-execute
    # itself, which costs 3 ms.
    "_LIBCONTAINER_CLONED_BINARY": "1",
}
# two patterns: a search for one fixed beginning is ten times as fast as a search for either of two
_SYSTEMD_NAMES = (re.compile(rb"sd_\w+"), re.compile(rb"LIBSYSTEMD_\d+"))


class Layout(Model):
    """The paths of one sandbox's folder."""

    directory: Path

    @property
    def socket(self) -> Path:
        return self.directory / "agent.sock"

    @property
    def scratch(self) -> Path:
        return self.directory / "scratch"

    @property
    def bundle(self) -> Path:
        return self.directory / "bundle"

    @property
    def log(self) -> Path:
        return self.directory / "launch.log"

    @property
    def pid_file(self) -> Path:
        return self.directory / "init.pid"

    def make_scratch(self, lowers: int) -> None:
        """The directories that the layers are mounted on."""
        scratch = str(self.scratch)
        for path in (scratch, *(f"{scratch}/l{number}" for number in range(lowers)), f"{scratch}/u"):
            os.mkdir(path, 0o755)

    def clear(self) -> None:
        """Remove what only a running sandbox needs. Raises OSError."""
        import shutil

        for path in (self.socket, self.pid_file, self.log):
            path.unlink(missing_ok=True)
        for path in (self.scratch, self.bundle, self.directory / "runtime"):
            shutil.rmtree(path, ignore_errors=True)


class Mount(Model):
    """A directory of this machine, writable or not, in a sandbox."""

    path: str
    source: Path
    subpath: str
    """Below `source`, where other sandboxes may be at work: the launcher follows no link there."""
    read_only: bool

    def argument(self) -> str:
        counted = (f"{len(os.fsencode(text))}:{text}" for text in (self.path, self.subpath))
        return f"volume={'ro' if self.read_only else 'rw'}:{':'.join(counted)}:{self.source}"


class Disk(Model):
    """What a sandbox's root is made of."""

    lowers: tuple[Path, ...]
    """Read-only layers, topmost first."""
    upper: Path
    """Holds u/, the writable layer, and w/, overlayfs's own."""
    words: Path
    """A file, limited in size, for the agent's last words."""
    make: Callable[[], None]
    """Makes the upper where it is not there yet; called while the launcher makes the namespaces."""
    make_words: Callable[[], None]
    """Makes `words`, empty; called while the launcher mounts the layers."""
    volumes: tuple[Mount, ...] = ()
    """In the order in which they are mounted."""


@contextmanager
def address(path: Path) -> Iterator[str]:
    """A short name for a unix socket at any path, through its directory's descriptor: the kernel takes 107 bytes."""
    if len(os.fsencode(path)) < 108:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


class Started(Model, kw_only=False):
    """A sandbox that runs: its first process, and a connection to its agent on which greetings have been exchanged."""

    init: ProcessId
    connection: socket.socket
    greeting: Hello
    at: float = field(default_factory=time.monotonic)

    @property
    def fresh(self) -> bool:
        """Whether the sandbox is so new that it is unlikely to have been stopped or frozen since."""
        return time.monotonic() - self.at < 1.0


def start(
    record: Record, directory: Path, disk: Disk, runtime: tuple[str, str], cgroups: Cgroups, lock: FileLock
) -> Started:
    """Start the sandbox; its agent has answered when this returns.

    Raises SandboxFailed with what the runtime said, Conflict when one of its files is in the way, Timeout, DiskFull.
    """
    client = socket.socket(socket.AF_UNIX)
    try:
        greeting = _launch(record, directory, disk, runtime, cgroups, lock, client)
        layout = Layout(directory=directory)
        init = ProcessId.of(int(layout.pid_file.read_text()))
        if init is None:
            raise SandboxFailed(f"the sandbox ended at once: {_last_words(layout)}")
        return Started(init, client, greeting)
    except BaseException:
        client.close()
        raise


def _launch(
    record: Record,
    directory: Path,
    disk: Disk,
    runtime: tuple[str, str],
    cgroups: Cgroups,
    lock: FileLock,
    client: socket.socket,
) -> Hello:
    """Start the launcher, exchange greetings with the agent over `client`, and see the runtime end well."""
    layout = Layout(directory=directory)
    boot = os.memfd_create("boot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    ready, go = os.pipe2(os.O_CLOEXEC)
    try:
        with address(layout.socket) as name, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
            listener.listen(128)
            inherited = {listener.fileno(): 3, boot: 4, ready: _GO_FD, lock.fileno(): _LOCK_FD}
            launcher = _spawn(_arguments(record, layout, disk, runtime, cgroups), environment(runtime), inherited)
            try:
                # In the meantime the launcher makes the namespaces, and then mounts the layers.
                with _room(layout):
                    layout.make_scratch(lowers=len(disk.lowers))
                    disk.make()
                    os.write(go, b"!")
                    disk.make_words()
                    cgroups.create(record.id, record.limits)
                    layout.bundle.mkdir()
                    (layout.bundle / "config.json").write_text(json.dumps(configuration(record, ROOT, runtime[0])))
                os.write(boot, _boot_frame(record))
                os.lseek(boot, 0, os.SEEK_SET)
                fcntl.fcntl(boot, fcntl.F_ADD_SEALS, _READ_ONLY)
                os.write(go, b"!")
                # The socket listens already: the greeting waits in it until the agent is there to read it.
                client.connect(name)
                client.sendall(hello_frame(bytes.fromhex(record.token)))
                listener.close()
                greeting = _await_hello(client, launcher, layout)
            except BaseException:
                _reap(launcher, kill=True)
                raise
    finally:
        for fd in (boot, ready, go):
            os.close(fd)
    if _reap(launcher) != 0:
        raise _not_started(layout)
    return greeting


@contextmanager
def _room(layout: Layout) -> Iterator[None]:
    """Raises DiskFull for what cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no room under {layout.directory.parent} for a new sandbox", errno=error.errno) from error
        raise


def _boot_frame(record: Record) -> bytes:
    """The agent's boot message, passed in memory: env and token are neither on disk nor in a command line."""
    env = {**host_layer.environment(), **variables(record)}
    idle = idle_limit(record.spec)
    assert record.deadline is not None
    boot = Boot(
        token=bytes.fromhex(record.token),
        env=tuple(f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in env.items()),
        workdir=record.workdir.encode("utf-8", "surrogateescape"),
        user=record.user,
        deadline_ms=max(1, int((record.deadline - time.clock_gettime(time.CLOCK_BOOTTIME)) * 1000)),
        idle_ms=0 if idle is None else max(1, round(idle * 1000)),
    )
    return encode_frame(0, Type.BOOT, boot.encode())


def _arguments(record: Record, layout: Layout, disk: Disk, runtime: tuple[str, str], cgroups: Cgroups) -> list[str]:
    assert record.slot is not None and record.limits.pids is not None
    kind, program = runtime
    state = layout.directory / "runtime"
    launcher = [
        binary("launcher"),
        f"parent={os.getpid()}",
        f"log={layout.log}",
        f"ids={host_id(record.slot)}",
        f"inotify={INOTIFY_INSTANCES}",
        f"files={open_file_limit(record.limits.pids)}",
        f"oom={cgroups.oom_file(record.id)}:5",
        f"words={disk.words}:6",
        f"go={_GO_FD}",
        *(f"lower={layer}" for layer in disk.lowers),
        f"upper={disk.upper}",
        f"scratch={layout.scratch}",
        f"root={ROOT}",
        f"empty={EMPTY}",
        f"unsynced={int(record.spec.unsynced)}",
        f"userns={USERNS}",
        f"netns={NETNS}",
        *(f"{part.how}={part.path}:{part.path}" for part in (host_layer.parts() if record.host else ())),
        f"agent={AGENT}:{binary('agent')}",
        *(mount.argument() for mount in disk.volumes),
    ]
    if kind == "crun":
        launcher += [f"join={file}" for file in cgroups.join_files(record.id)]
        if cgroups.mask is not None:
            launcher.append(f"mask={cgroups.mask}")
    launcher.append("--")
    options = ["--root", str(state), "--log", str(layout.log)]
    if kind == "crun":
        options.append("--cgroup-manager=disabled")
    run = ["run", "-d", "--preserve-fds", "4", "--pid-file", str(layout.pid_file), "-b", str(layout.bundle), record.id]
    return [*launcher, program, *options, *run]


def environment(runtime: tuple[str, str]) -> dict[str, str]:
    """For the launcher, which becomes the runtime."""
    kind, path = runtime
    try:
        light = kind == "crun" and _needs_no_systemd(path, os.stat(path).st_mtime_ns)
    except OSError:
        light = False  # the launcher says what is wrong with it
    return {**_ENVIRONMENT, "LD_PRELOAD": binary("libsystemd.so.0")} if light else _ENVIRONMENT


@cache
def _needs_no_systemd(path: str, changed: int) -> bool:
    """Whether our libsystemd has everything that this crun needs of it: another crun may need more."""
    crun, ours = (Path(file).read_bytes() for file in (path, binary("libsystemd.so.0")))
    return all(set(names.findall(crun)) <= set(names.findall(ours)) for names in _SYSTEMD_NAMES)


def _spawn(arguments: list[str], environment: dict[str, str], inherited: dict[int, int]) -> int:
    """Start the launcher with descriptors under the numbers it expects; returns its pid."""
    # First copy all descriptors to higher numbers: one may have the number that another is to get.
    high = 1 + max(*inherited, *inherited.values())
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
    actions += [(os.POSIX_SPAWN_DUP2, source, high + number) for number, source in enumerate(inherited)]
    actions += [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
    for number, target in enumerate(inherited.values()):
        actions += [(os.POSIX_SPAWN_DUP2, high + number, target), (os.POSIX_SPAWN_CLOSE, high + number)]
    # a new session: Ctrl-C at a terminal is for the client to handle
    try:
        return os.posix_spawn(arguments[0], arguments, environment, file_actions=actions, setsid=True)
    except OSError as error:
        if error.errno == errno.EBADF:  # a number above the limit of open files
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
        raise


def _await_hello(client: socket.socket, launcher: int, layout: Layout) -> Hello:
    """Wait for the agent's greeting, or for the launcher to fail. Raises SandboxFailed, Conflict, Timeout."""
    reader = HelloReader()
    deadline = time.monotonic() + READY_TIMEOUT
    watch = os.pidfd_open(launcher)
    poll = select.poll()
    poll.register(client, select.POLLIN)
    poll.register(watch, select.POLLIN)
    try:
        while True:
            ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not ready:
                raise Timeout(f"the sandbox was not ready after {READY_TIMEOUT:.0f} s: {_last_words(layout)}")
            if client.fileno() in ready:
                reader.feed(_receive(client, launcher, layout))
                if reader.hello is not None:
                    return reader.hello
            elif watch in ready:
                if _exit_status(launcher) != 0:
                    raise _not_started(layout)
                poll.unregister(watch)
    except Corrupted as error:
        raise SandboxFailed(error.message) from error
    finally:
        os.close(watch)


def _receive(client: socket.socket, launcher: int, layout: Layout) -> bytes:
    try:
        data = client.recv(65536)
    except ConnectionResetError:
        data = b""
    if not data:  # the last holder of the listening socket is gone, so the launcher is ending and has said why
        _exit_status(launcher)
        raise _not_started(layout)
    return data


def _not_started(layout: Layout) -> SandboxFailed | Conflict:
    said = _log(layout)
    if said.startswith(_REFUSED):
        return Conflict(
            f"the sandbox cannot start: {said.removeprefix(_REFUSED)[:3000]}",
            hint="mount volumes at paths without links; a snapshot of a sandbox that cannot start has its files",
        )
    return SandboxFailed(f"the sandbox did not start: {_last_words(layout)}", hint="run `skerry doctor`")


def _exit_status(pid: int) -> int:
    """The status of an ended child, without reaping it."""
    result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert result is not None
    return int(result.si_status)


def _reap(pid: int, *, kill: bool = False) -> int:
    if kill:
        os.kill(pid, 9)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _last_words(layout: Layout) -> str:
    return _log(layout)[-600:] or "the runtime gave no reason"


def _log(layout: Layout) -> str:
    """What the launcher and the runtime have said."""
    try:
        return layout.log.read_text(errors="replace").strip()
    except OSError:
        return ""


@cache
def check_binaries() -> None:
    """Raises ProviderUnavailable."""
    for name in ("agent", "launcher", "libsystemd.so.0", "seccomp.bpf"):
        binary(name)
    if not Path("/proc/self/ns/user").exists():
        raise ProviderUnavailable("this kernel has no user namespaces")
