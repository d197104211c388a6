"""TCP ports inside a sandbox, and ways to reach them."""

from __future__ import annotations

import asyncio
import math
import socket
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

import anyio

from skerry.core import ConnectionLost, InvalidArgument, ListeningPort, PortClosed, Timeout
from skerry.sdk.commands.request import check_bytes, check_whole
from skerry.sdk.connection.link import CONTROL_GUARD, Link
from skerry.sdk.connection.stream import Data, Stream
from skerry.sdk.ports.forward import CHUNK, Inflow, Relay, dialled, open_dial
from skerry.wire import PortEntry, Ports

POLL, POLL_MAX = 0.01, 0.1
"""How often `wait` looks: the kernel tells nobody when a program begins to listen."""
REACHABLE = ("127.0.0.1", "::1", "0.0.0.0", "::")
"""What a DIAL without an address finds."""


class AsyncConnection:
    """A TCP connection to a port inside. One task at a time may read, one at a time may write."""

    def __init__(self, link: Link, stream: Stream, address: str) -> None:
        self._link, self._stream, self._address = link, stream, address
        self._inflow = Inflow(stream)
        self._rest = b""

    @property
    def address(self) -> str:
        """The address inside that was reached."""
        return self._address

    async def read(self, max_bytes: int = CHUNK) -> bytes:
        """The next bytes, at most `max_bytes`; none when the other side has no more.

        Raises FileError when the connection was reset; ConnectionLost, SandboxNotFound.
        """
        check_whole(max_bytes, "max_bytes", least=1)
        if not self._rest:
            try:
                self._rest = await self._inflow.next()
            except ConnectionLost as lost:
                await self._link.raise_lost(lost)
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        if data:
            self._stream.took(0, len(data))
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes, as fast as the other side takes them. Raises ConnectionLost when the connection is over."""
        check_bytes(data)
        if self._stream.input_ended:
            raise InvalidArgument("the writing side of this connection is closed")
        if not await self._stream.send(data):
            raise ConnectionLost("the connection is over")

    async def close_write(self) -> None:
        """Tell the other side that nothing more is sent; it may still answer."""
        if not self._stream.input_ended:
            await self._stream.send(b"", end=True)

    async def close(self) -> None:
        """End the connection; one that has not ended both ways is reset."""
        self._stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class AsyncForward:
    """A port of this machine that leads to one inside; made by `ports.forward`."""

    def __init__(self, relay: Relay, port: int, host: str) -> None:
        self._relay, self._port, self._host = relay, port, host

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to port {self._port}>"

    @property
    def port(self) -> int:
        """The port inside."""
        return self._port

    @property
    def host(self) -> str:
        """The address of this machine that it listens on."""
        return self._host

    @property
    def local_port(self) -> int:
        """The port of this machine."""
        return self._relay.local_port

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.2", "::": "::1"}.get(self._host, self._host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.local_port}"

    async def close(self) -> None:
        """End the forward and its connections. Harmless afterwards."""
        await self._relay.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class AsyncPorts:
    """The TCP ports inside a sandbox. Only forwarded ports are open to the outside."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._relays: set[Relay] = set()
        self._urls: dict[tuple[asyncio.AbstractEventLoop, int], AsyncForward] = {}
        # Each keeps the tasks of one loop from opening two forwards for the same port.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, anyio.Lock] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._link.sandbox_id}>"

    async def list(self) -> list[ListeningPort]:
        """The ports that a process inside listens on, by number."""
        found: list[ListeningPort] = []
        async with self._link.open(Ports()) as stream:
            while True:
                item = await stream.next(CONTROL_GUARD)
                if isinstance(item, Data):
                    raise stream.corrupt("DATA in a list of ports")
                if item.final:
                    return found
                found.append(_listening(stream, stream.decode(PortEntry, item.payload)))

    async def wait(self, port: int, *, timeout: float = 30.0) -> ListeningPort:
        """Wait until a process inside listens on `port`. Raises Timeout."""
        _check_port(port)
        _check_wait(timeout, "timeout")
        found = await self._wait(port, timeout)
        if found is None:
            raise Timeout(f"no process listens on port {port} after {timeout:g} s", hint="check that the server runs")
        return found

    async def _wait(self, port: int, timeout: float) -> ListeningPort | None:
        clock = asyncio.get_running_loop().time
        end, pause = clock() + timeout, POLL
        while True:
            entries = [entry for entry in await self.list() if entry.port == port]
            if entries:
                return next((entry for entry in entries if entry.address in REACHABLE), entries[0])
            left = end - clock()
            if left <= 0:
                return None
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, POLL_MAX)

    # Not on 127.0.0.1: browsers send the cookies of an address to all its ports, and a server of Skerry listens there.
    async def forward(
        self, port: int, *, local_port: int = 0, host: str = "127.0.0.2", wait: float = 0.0
    ) -> AsyncForward:
        """Let `local_port` of this machine (0: any that is free) lead to `port` inside.

        It listens on 127.0.0.2, which only this machine reaches. There a browser does not send the program inside its
        cookies for 127.0.0.1, such as the session of a Skerry server; `host="127.0.0.1"` gives up that protection.

        It ends with `close()`, with its `async with` block, and with this sandbox object. A connection whose other side
        cannot be reached is reset.

        Raises:
            PortClosed: no process inside listens on `port` after `wait` seconds.
            Conflict: `local_port` is in use.
            InvalidArgument: no such port, or a host that does not belong to this machine.
        """
        _check_port(port)
        if check_whole(local_port, "local_port", least=0) > 65535:
            raise InvalidArgument(f"{local_port} is not a port")
        if not host:
            raise InvalidArgument("the host to listen on is empty")
        found = await self._wait(port, _check_wait(wait, "wait"))
        if found is None:
            raise PortClosed(f"no process in {self._link.sandbox_id} listens on port {port}")
        relay = Relay(self._link, port, None if found.address in REACHABLE else found.address)
        await relay.open(host, local_port)
        self._relays = {known for known in self._relays if not known.closed} | {relay}
        return AsyncForward(relay, port, host)

    async def url(self, port: int) -> str:
        """A URL of this machine that leads to `port` inside, for as long as this sandbox object is open.

        Raises PortClosed.
        """
        loop = asyncio.get_running_loop()
        async with self._locks.setdefault(loop, anyio.Lock()):
            known = self._urls.get((loop, port))
            if known is None or known._relay.closed:
                known = self._urls[loop, port] = await self.forward(port)
        return known.url

    async def connect(self, port: int, *, address: str | None = None) -> AsyncConnection:
        """A connection to `port` inside: to 127.0.0.1, else to ::1, or to an IP address that the sandbox reaches.

        Raises PortClosed when no process listens there, FileError when the address cannot be reached, InvalidArgument.
        """
        _check_port(port)
        if address is not None and _family(address) is None:
            raise InvalidArgument(f"{address!r} is not an IP address")
        opening = open_dial(self._link, port, address)
        stream = await opening.__aenter__()
        try:
            return AsyncConnection(self._link, stream, await dialled(stream))
        except BaseException as error:
            await opening.__aexit__(type(error), error, None)
            raise

    async def _close(self) -> None:
        """End every forward. Called by the sandbox."""
        relays, self._relays = self._relays, set()
        self._urls.clear()
        loop = asyncio.get_running_loop()
        for relay in relays:
            if relay.loop is loop:
                await relay.close()
            elif not relay.loop.is_closed():
                relay.loop.call_soon_threadsafe(relay.stop)


def _listening(stream: Stream, entry: PortEntry) -> ListeningPort:
    """Ends the session and raises Corrupted for what no port can be."""
    if not 0 < entry.port < 65536 or entry.uid < 0 or _family(entry.address) is None:
        raise stream.corrupt("a port that cannot be")
    return ListeningPort(port=entry.port, address=entry.address, uid=entry.uid)


def _family(address: object) -> int | None:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address)  # type: ignore[arg-type]
        except (OSError, TypeError, ValueError):
            continue
        return family
    return None


def _check_port(port: object) -> None:
    if check_whole(port, "port", least=1) > 65535:
        raise InvalidArgument(f"{port} is not a port: they go up to 65535")


def _check_wait(seconds: object, what: str) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise InvalidArgument(f"{what} must be a number of seconds, not {seconds!r}")
    return seconds
