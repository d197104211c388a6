"""A small blocking client of the agent for its tests: frames over a unix socket, one thread, no cleverness."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from skerry import wire
from skerry.wire import Frame, Message, Type

M = TypeVar("M", bound=Message)
TOKEN = b"a token of the tests"
BIG = 1 << 30
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17


class AgentError(Exception):
    def __init__(self, failure: wire.Failure) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.code, self.errno, self.message = failure.code, failure.errno, failure.message


class Closed(Exception):
    """The agent has ended the connection."""


@dataclass
class Result:
    exit: wire.Exit
    stdout: bytes
    stderr: bytes
    started: wire.Started


@dataclass
class Agent:
    """A real agent process with its socket, in a directory of its own."""

    binary: Path
    root: Path
    user: str = "user"
    workdir: bytes = b""
    env: tuple[bytes, ...] = ()
    deadline_ms: int = 0
    idle_ms: int = 0
    oom: Path | None = None
    words: Path | None = None
    prefix: list[str] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)

    def start(self) -> Agent:
        if not self.workdir:
            os.chmod(self.root, 0o755)
            self.workdir = os.fsencode(self.root / "work")
            os.mkdir(self.workdir)
            os.chown(self.workdir, 1000, 1000)
        self.address = tempfile.mktemp(prefix="agent-", suffix=".sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.address)
        listener.listen(64)
        boot = wire.Boot(
            token=TOKEN,
            env=self.env,
            workdir=self.workdir,
            user=self.user,
            deadline_ms=self.deadline_ms,
            idle_ms=self.idle_ms,
        )
        memory = os.memfd_create("boot")
        os.write(memory, wire.encode_frame(0, Type.BOOT, boot.encode()))
        os.lseek(memory, 0, os.SEEK_SET)
        fds = [listener.fileno(), memory]
        if self.oom:
            fds.append(os.open(self.oom, os.O_RDONLY))
        arguments = [str(fd) for fd in fds]
        if self.words:
            fds.append(os.open(self.words, os.O_WRONLY | os.O_CREAT, 0o600))
            arguments += [*([] if self.oom else ["-"]), str(fds[-1])]
        self.log = self.root / "stderr"
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*self.prefix, str(self.binary), *arguments],
                pass_fds=fds,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                env={
                    "PATH": os.environ["PATH"],
                    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
                    "UBSAN_OPTIONS": "print_stacktrace=1",
                },
            )
        listener.close()
        for fd in fds[1:]:
            os.close(fd)
        return self

    def __enter__(self) -> Agent:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def connect(self, token: bytes = TOKEN, hello: bool = True) -> Connection:
        connection = Connection(self.address)
        self.connections.append(connection)
        if hello:
            connection.send(0, Type.HELLO, wire.Hello(generation=1, token=token))
            assert connection.next(0).type == Type.HELLO
        return connection

    def children(self) -> list[int]:
        """Its file workers, and whatever serves a command."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def descriptors(self) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def last_words(self) -> wire.LastWords | None:
        """What it has left, once it has ended."""
        self.process.wait(30)
        assert self.words is not None
        return wire.parse_last_words(self.words.read_bytes())

    def rss_kb(self) -> int:
        return int(status(self.process.pid)["VmRSS"].split()[0])

    def stop(self) -> None:
        for connection in self.connections:
            connection.close()
        alive = self.process.poll() is None
        if alive:
            for child in self.children():  # one that a test has stopped would never see that the agent has ended
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGCONT)
            self.process.terminate()
        self.process.wait(10)
        os.unlink(self.address)
        assert self.log.read_text() == ""
        assert self.process.returncode in (0, -signal.SIGTERM), self.process.returncode


class Connection:
    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(address)
        self.decoder = wire.Decoder()
        self.waiting: dict[int, deque[Frame]] = {}
        self.last = 0

    def close(self) -> None:
        self.socket.close()

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, stream: int, type: int, message: Message | bytes = b"", flags: int = 0) -> None:
        payload = message if isinstance(message, bytes) else message.encode()
        self.raw(wire.encode_frame(stream, type, payload, flags))

    def open(self, message: Message) -> int:
        self.last += 1
        assert message.type is not None
        self.send(self.last, message.type, message)
        return self.last

    def data(self, stream: int, data: bytes, *, channel: int = 0, offset: int = 0, end: bool = False) -> None:
        self.raw(wire.data_frame(stream, channel, offset, data, end=end))

    def credit(self, stream: int, channel: int, amount: int) -> None:
        self.raw(wire.credit_frame(stream, channel, amount))

    def pump(self) -> None:
        try:
            received = self.socket.recv(1 << 18)
        except ConnectionResetError:
            received = b""
        if not received:
            raise Closed
        for frame in self.decoder.feed(received):
            self.waiting.setdefault(frame.stream, deque()).append(frame)

    def next(self, stream: int) -> Frame:
        while not self.waiting.get(stream):
            self.pump()
        return self.waiting[stream].popleft()

    def reply(self, stream: int, message: type[M], *, final: bool = True) -> M:
        """The next frame, which must be a REPLY; an ERROR is raised. CREDIT is passed over."""
        frame = self.next(stream)
        while frame.type == Type.CREDIT:
            frame = self.next(stream)
        if frame.type == Type.ERROR:
            raise AgentError(wire.Failure.decode(frame.payload))
        assert frame.type == Type.REPLY, frame
        assert bool(frame.flags & wire.FINAL) == final, frame
        return message.decode(frame.payload)

    def ask(self, message: Message, answer: type[M]) -> M:
        return self.reply(self.open(message), answer)

    def start(self, *argv: bytes | str, **options: Any) -> tuple[int, wire.Started]:
        options.setdefault("window", BIG)
        encoded = tuple(item if isinstance(item, bytes) else item.encode() for item in argv)
        stream = self.open(wire.Start(argv=encoded, **options))
        return stream, self.reply(stream, wire.Started, final=False)

    def output(self, stream: int) -> tuple[wire.Exit, bytes, bytes]:
        """Everything up to the exit, with the offsets checked against the bytes."""
        parts: dict[int, list[bytes]] = {1: [], 2: []}
        position: dict[int, int] = {}
        ended = set()
        while True:
            frame = self.next(stream)
            if frame.type == Type.ERROR:
                raise AgentError(wire.Failure.decode(frame.payload))
            if frame.type == Type.CREDIT:
                continue
            if frame.type == Type.REPLY:
                assert ended == {1, 2}
                return wire.Exit.decode(frame.payload), b"".join(parts[1]), b"".join(parts[2])
            offset, data = wire.parse_data(frame.payload)
            channel = frame.flags & wire.CHANNEL_MASK
            assert channel not in ended
            assert position.setdefault(channel, offset) <= offset
            position[channel] = offset + len(data)
            parts[channel].append(bytes(data))
            if frame.flags & wire.END:
                ended.add(channel)

    def run(self, *argv: bytes | str, **options: Any) -> Result:
        stream, started = self.start(*argv, **({"flags": 1} | options))
        exit, stdout, stderr = self.output(stream)
        return Result(exit, stdout, stderr, started)

    def sh(self, script: str, **options: Any) -> Result:
        return self.run("/bin/sh", "-c", script, **options)

    def read(self, path: bytes | str, **options: Any) -> tuple[wire.FileInfoMessage, bytes]:
        options.setdefault("window", BIG)
        stream = self.open(wire.Read(path=_path(path), **options))
        info = self.reply(stream, wire.FileInfoMessage, final=False)
        parts: list[bytes] = []
        while True:
            frame = self.next(stream)
            assert frame.type == Type.DATA, frame
            parts.append(bytes(wire.parse_data(frame.payload)[1]))
            if frame.flags & wire.END:
                break
        content = b"".join(parts)
        assert self.reply(stream, wire.ReadDone).bytes_read == len(content)
        return info, content

    def write(self, path: bytes | str, content: bytes, **options: Any) -> wire.FileInfoMessage:
        stream = self.open(wire.Write(path=_path(path), **options))
        credit, sent = wire.INPUT_WINDOW, 0
        while sent < len(content):
            while not credit:
                credit += self.take_credit(stream)
            piece = content[sent : sent + credit]
            self.data(stream, piece, offset=sent)
            credit -= len(piece)
            sent += len(piece)
        self.data(stream, b"", offset=sent, end=True)
        return self.reply(stream, wire.FileInfoMessage)

    def take_credit(self, stream: int) -> int:
        frame = self.next(stream)
        if frame.type == Type.ERROR:
            raise AgentError(wire.Failure.decode(frame.payload))
        assert frame.type == Type.CREDIT, frame
        return wire.parse_credit(frame.payload)

    def list(self, path: bytes | str, *, window: int = BIG, **options: Any) -> list[wire.FileInfoMessage]:
        stream = self.open(wire.ListDir(path=_path(path), window=window, **options))
        entries: list[wire.FileInfoMessage] = []
        while True:
            frame = self.next(stream)
            if frame.type == Type.ERROR:
                raise AgentError(wire.Failure.decode(frame.payload))
            assert frame.type == Type.DATA
            data = wire.parse_data(frame.payload)[1]
            assert len(data) <= window
            entries.extend(wire.iter_entries(data))
            if frame.flags & wire.END:
                break
            self.credit(stream, 0, len(data))
        assert self.reply(stream, wire.Count).count == len(entries)
        return entries

    def stat(self, path: bytes | str, **options: Any) -> wire.FileInfoMessage:
        return self.ask(wire.Stat(path=_path(path), **options), wire.FileInfoMessage)

    def processes(self) -> dict[int, wire.ProcessEntry]:
        stream = self.open(wire.Processes())
        found = {}
        while True:
            frame = self.next(stream)
            if frame.flags & wire.FINAL:
                return found
            entry = wire.ProcessEntry.decode(frame.payload)
            found[entry.id] = entry

    def broken(self) -> str:
        """The code of the ERROR on stream 0 that the connection ends with ("" if there is none)."""
        code = ""
        try:
            while True:
                frame = self.next(0)
                if frame.type == Type.ERROR:
                    code = wire.Failure.decode(frame.payload).code
        except Closed:
            return code


def _path(path: bytes | str) -> bytes:
    return path if isinstance(path, bytes) else os.fsencode(path)


def pids_with(marker: str) -> list[int]:
    """The processes (no zombies) that have the marker in their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until(condition: Any, timeout: float = 10) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.005)


def state(pid: int) -> tuple[str, int]:
    """The letter of its state, and its parent."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return fields[0], int(fields[1])


def status(pid: int) -> dict[str, str]:
    """What the kernel tells of it, by the names in /proc."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def trace(pid: int) -> None:
    """Hold it as a debugger does: its parent is told nothing of that."""
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, pid, None, None) < 0:
            pytest.skip(f"this machine lets nobody trace: {os.strerror(ctypes.get_errno())}")
    wait_until(lambda: state(pid)[0] == "t")


def let_go(pid: int) -> None:
    """Let one go on that `trace` holds."""
    ctypes.CDLL(None).ptrace(PTRACE_DETACH, pid, None, None)
