"""An agent that says what a test tells it to, over a real socket pair, and a provider that dials it.

It shows no behaviour of its own that the real agent must show: it plays the hostile or broken one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
from anyio.abc import UNIXSocketStream

from skerry.core.contract.provider import Channel, Deadlines, Leases, Provider, Resizable
from skerry.core.errors import SandboxNotFound
from skerry.core.models import Event, Resources, SandboxInfo, SandboxSpec, State, Usage
from skerry.wire import (
    FINAL,
    Decoder,
    Empty,
    Exit,
    Failure,
    Frame,
    Hello,
    LifeReply,
    Message,
    Start,
    Started,
    StatsReply,
    Type,
    data_frame,
    encode_frame,
)

TOKEN = b"secret"


class Connection:
    """One client, seen from the agent's side."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self.stream = stream
        self._frames = self._read()

    async def _read(self) -> AsyncIterator[Frame]:
        decoder = Decoder()
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                for frame in decoder.feed(await self.stream.receive()):
                    yield frame

    async def frame(self, *types: Type) -> Frame:
        """The next frame, or the next of these types. Raises EOFError when the client has gone."""
        async for frame in self._frames:
            if not types or frame.type in types:
                return frame
        raise EOFError("the client has gone")

    async def raw(self, *data: bytes) -> None:
        await self.stream.send(b"".join(data))

    async def greet(self, generation: int = 1) -> None:
        frame = await self.frame()
        assert frame.type == Type.HELLO
        await self.raw(encode_frame(0, Type.HELLO, Hello(generation=generation, version="fake").encode()))

    async def opened(self, *types: Type) -> Frame:
        """The next frame that opens a stream."""
        while (frame := await self.frame(*types)).type < Type.START:
            pass
        return frame


def reply(stream: int, message: Message, *, final: bool = True) -> bytes:
    return encode_frame(stream, Type.REPLY, message.encode(), FINAL if final else 0)


def failure(stream: int, code: str, message: str = "") -> bytes:
    return encode_frame(stream, Type.ERROR, Failure(code=code, message=message).encode())


def started(stream: int, id: int = 1) -> bytes:
    return reply(stream, Started(id=id, pid=100 + id, started_ms=1000), final=False)


def ends(stream: int, stdout: int = 0, stderr: int = 0) -> bytes:
    return data_frame(stream, 1, stdout, b"", end=True) + data_frame(stream, 2, stderr, b"", end=True)


def exited(stream: int, code: int | None = 0, *, out: int = 0, err: int = 0, **fields: object) -> bytes:
    values = {"status": "exited", "duration_us": 1000, "stdout_bytes": out, "stderr_bytes": err} | fields
    return reply(stream, Exit(exit_code=code, **values))  # type: ignore[arg-type]


Script = Callable[[Connection], Awaitable[None]]


async def polite(connection: Connection) -> None:
    """Greets, answers START by an exit of 0 with the last argument as output, and LIFE and STATS as they should be."""
    await connection.greet()
    while True:
        frame = await connection.frame()
        if frame.type == Type.START:
            text = Start.decode(frame.payload).argv[-1]
            await connection.raw(
                started(frame.stream),
                data_frame(frame.stream, 1, 0, text),
                ends(frame.stream, len(text)),
                exited(frame.stream, out=len(text)),
            )
        elif frame.type == Type.LIFE:
            await connection.raw(reply(frame.stream, LifeReply(remaining_ms=-1, leased=0, uptime_ms=1)))
        elif frame.type == Type.STATS:
            stats = StatsReply(disk_total=1000, disk_used=10, net_rx=5, net_tx=6, processes=1)
            await connection.raw(reply(frame.stream, stats))
        elif frame.type == Type.SIGNAL:
            await connection.raw(reply(frame.stream, Empty()))


class FakeProvider(Provider, Deadlines, Leases, Resizable):
    """Sandboxes in memory; each dial runs the script on the other end of a socket pair."""

    name = "fake"

    def __init__(self, script: Script = polite) -> None:
        self.script = script
        self.sandboxes: dict[str, SandboxInfo] = {}
        self.stored: dict[str, list[Event]] = {}
        self.leased: list[str] = []
        self.dials = 0
        self.agents: set[asyncio.Task[None]] = set()
        self.failures: list[BaseException] = []

    def store(self, sandbox_id: str, type: str) -> None:
        events = self.stored.setdefault(sandbox_id, [])
        events.append(Event(cursor=len(events) + 1, type=type, sandbox_id=sandbox_id, time=time.time()))

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        sandbox_id = f"sb-{len(self.sandboxes):010d}"
        now = time.time()
        info = self.sandboxes[sandbox_id] = SandboxInfo(
            id=sandbox_id,
            name=spec.name,
            provider=self.name,
            state=State.RUNNING,
            created_at=now,
            started_at=now,
            last_active_at=None,
            expires_at=now + spec.timeout,
            resources=spec.resources,
            template=spec.template,
            isolation="none",
            network=spec.network,
            user=spec.user,
            workdir=spec.workdir,
            purpose=spec.purpose,
            metadata=spec.metadata,
            labels=spec.labels,
            env_names=tuple(spec.env),
            leased_to=None,
            reason=None,
        )
        self.store(sandbox_id, "created")
        self.store(sandbox_id, "ready")
        return info

    async def create_any(self) -> SandboxInfo:
        return await self.create(SandboxSpec())

    async def get(self, sandbox_id: str) -> SandboxInfo:
        if sandbox_id not in self.sandboxes:
            raise SandboxNotFound(f"no sandbox {sandbox_id}")
        return self.sandboxes[sandbox_id]

    async def find(self, id_or_name: str) -> SandboxInfo:
        for info in self.sandboxes.values():
            if id_or_name in (info.id, info.name):
                return info
        raise SandboxNotFound(f"no sandbox {id_or_name}")

    async def list(self) -> list[SandboxInfo]:
        return list(self.sandboxes.values())

    async def destroy(self, sandbox_id: str) -> None:
        self.sandboxes.pop(sandbox_id, None)

    async def dial(self, sandbox_id: str, port: int = 0) -> Channel:
        await self.get(sandbox_id)
        self.dials += 1
        ours, theirs = socket.socketpair()
        client = await UNIXSocketStream.from_socket(ours)
        agent = await UNIXSocketStream.from_socket(theirs)
        task = asyncio.get_running_loop().create_task(self._serve(agent))
        self.agents.add(task)
        task.add_done_callback(self.agents.discard)
        return Channel(stream=client, token=TOKEN)

    async def _serve(self, stream: UNIXSocketStream) -> None:
        try:
            await self.script(Connection(stream))
        except (EOFError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        except Exception as error:  # noqa: BLE001
            self.failures.append(error)
        finally:
            await stream.aclose()

    async def usage(self, sandbox_id: str) -> Usage:
        await self.get(sandbox_id)
        return Usage(
            cpu_percent=1.0,
            cpu_seconds=2.0,
            memory_used=3,
            memory_total=4,
            disk_used=None,
            disk_total=None,
            network_rx=0,
            network_tx=0,
            pids=1,
            pids_limit=None,
        )

    async def events(self, sandbox_id: str, since: int = 0) -> list[Event]:
        await self.get(sandbox_id)
        return [event for event in self.stored.get(sandbox_id, []) if event.cursor > since]

    async def sweep(self) -> list[str]:
        return []

    async def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        return await self.get(sandbox_id)

    async def record_lease(self, sandbox_id: str, *, held: bool = True) -> None:
        self.leased.append(sandbox_id)

    async def set_limits(self, sandbox_id: str, resources: Resources) -> SandboxInfo:
        return await self.get(sandbox_id)

    async def aclose(self) -> None:
        for task in list(self.agents):
            task.cancel()
        if self.agents:
            await asyncio.wait(self.agents)
