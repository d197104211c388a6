"""TCP connections into a sandbox: one stream each, and a local listener whose connections are joined to them."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct

from skerry.core import Conflict, InvalidArgument, PermissionDenied, SkerryError
from skerry.sdk.connection.link import CONTROL_GUARD, Link, Opening
from skerry.sdk.connection.stream import Data, Stream
from skerry.sdk.log import log
from skerry.wire import Dial, DialDone, Dialled

CHUNK = 64 * 1024
BACKLOG = 128
_RESET = struct.pack("ii", 1, 0)


def open_dial(link: Link, port: int, address: str | None) -> Opening:
    """`async with` gives the stream of a connection; `dialled` says when it is there."""
    return link.open(Dial(port=port, address=address))


async def dialled(stream: Stream) -> str:
    """The address that was reached. Raises PortClosed."""
    item = await stream.next(CONTROL_GUARD)
    if isinstance(item, Data) or item.final:
        raise stream.corrupt("a connection that does not begin with its address")
    return stream.decode(Dialled, item.payload).address


class Inflow:
    """What a connection's other side sends, with the counts checked at its end."""

    def __init__(self, stream: Stream) -> None:
        self.ended = False
        """Whether the other side has no more."""
        self._stream = stream
        self._received = 0

    async def next(self) -> bytes:
        """The next bytes; none at the end. A caller that has used them calls the stream's `took`."""
        if self.ended:
            return b""
        item = await self._stream.next()
        if not isinstance(item, Data):
            raise self._stream.corrupt("a connection that is over before it has ended")
        self._received += len(item.data)
        self.ended = item.end
        return bytes(item.data) or await self.next()

    async def finish(self, sent: int) -> None:
        """Wait until both directions have ended."""
        item = await self._stream.next()
        if isinstance(item, Data) or not item.final:
            raise self._stream.corrupt("a connection that continues after its end")
        done = self._stream.decode(DialDone, item.payload)
        if not self._stream.input_ended or (done.sent, done.received) != (sent, self._received):
            raise self._stream.corrupt("a connection that has not carried as many bytes as it says")


class Relay:
    """A local listener; each connection to it is joined to one inside. Belongs to the event loop it was opened in."""

    def __init__(self, link: Link, port: int, address: str | None) -> None:
        self._link, self._port, self._address = link, port, address
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()
        self.local_port = 0
        self.closed = False

    async def open(self, host: str, local_port: int) -> None:
        """Raises Conflict when the port is in use, InvalidArgument for a host that does not belong to this machine."""
        try:
            found = await self.loop.getaddrinfo(host, local_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            with socket.socket(family) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                own = listener.dup()
        except OSError as error:
            raise _refused(error, host, local_port) from error
        own.setblocking(False)
        self._server = await asyncio.start_server(self._accepted, sock=own, limit=CHUNK, backlog=BACKLOG)
        self.local_port = own.getsockname()[1]

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self.loop.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection that did not end well on the one side is reset on the other: never a clean end."""
        try:
            async with open_dial(self._link, self._port, self._address) as stream:
                await dialled(stream)
                await _join(reader, writer, stream)
            writer.close()
            await writer.wait_closed()
        except (SkerryError, OSError) as error:
            log.debug("a connection to port %d ended: %s", self._port, error, extra=self._link.fields("forward"))
            _reset(writer)
        except BaseException:
            _reset(writer)
            raise

    async def close(self) -> None:
        """End the listener and its connections; harmless afterwards."""
        self.stop()
        if self._connections:
            await asyncio.wait(self._connections)
        if self._server is not None:
            await self._server.wait_closed()

    def stop(self) -> None:
        """The same without waiting."""
        self.closed = True
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: Stream) -> None:
    """Carry bytes both ways until both have ended. Raises what broke either side."""
    up = asyncio.get_running_loop().create_task(_send(reader, stream))
    down = asyncio.get_running_loop().create_task(_receive(writer, stream))
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_EXCEPTION)
        for task in (down, up):
            if task.done():
                task.result()
        inflow, sent = down.result(), up.result()
        await inflow.finish(sent)
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.wait((up, down))


async def _send(reader: asyncio.StreamReader, stream: Stream) -> int:
    sent = 0
    while data := await reader.read(CHUNK):
        if not await stream.send(data):
            return sent
        sent += len(data)
    await stream.send(b"", end=True)
    return sent


async def _receive(writer: asyncio.StreamWriter, stream: Stream) -> Inflow:
    inflow = Inflow(stream)
    while data := await inflow.next():
        writer.write(data)
        await writer.drain()
        stream.took(0, len(data))
    writer.write_eof()
    return inflow


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def _refused(error: OSError, host: str, local_port: int) -> SkerryError:
    where = f"{host} port {local_port}"
    if error.errno == errno.EADDRINUSE:
        return Conflict(f"{where} is in use", hint="pick another local_port, or 0 for any that is free")
    if error.errno == errno.EACCES:
        return PermissionDenied(f"{where} may not be listened on", errno=error.errno, hint="use a port above 1023")
    return InvalidArgument(f"cannot listen on {where}: {error}")
