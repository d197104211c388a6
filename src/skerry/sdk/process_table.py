"""What an agent says about the processes of its sandbox, checked."""

from __future__ import annotations

from typing import TypeVar

from skerry.core.errors import ConnectionLost, ProcessNotFound, SkerryError
from skerry.core.models import ExecStatus, ProcessInfo
from skerry.sdk.commands import decode
from skerry.sdk.link import CONTROL_GUARD, Link
from skerry.sdk.stream import Reply, Stream
from skerry.wire import Message, ProcessEntry, Processes

M = TypeVar("M", bound=Message)

MAX_PROCESSES = 1024
MAX_LIST_BYTES = 16 << 20


async def first_reply(link: Link, stream: Stream, kind: type[M]) -> M:
    """The REPLY that START and ATTACH begin with; the stream goes on, but is closed when this fails."""
    try:
        item = await stream.next(CONTROL_GUARD)
        if not isinstance(item, Reply):
            raise stream.corrupt("output before the REPLY")
        return stream.decode(kind, item.payload)
    except SkerryError as error:
        stream.close()
        if isinstance(error, ConnectionLost):
            await link.raise_lost(error)
        raise


async def list_processes(link: Link) -> list[ProcessInfo]:
    found: list[ProcessInfo] = []
    async with link.open(Processes(), max_replies=MAX_PROCESSES + 1, max_reply_bytes=MAX_LIST_BYTES) as stream:
        while True:
            item = await stream.next(CONTROL_GUARD)
            if not isinstance(item, Reply):
                raise stream.corrupt("DATA in a list of processes")
            if item.final:
                return sorted(found, key=lambda info: info.id)
            found.append(_info(stream, stream.decode(ProcessEntry, item.payload)))


async def find_process(link: Link, id: int) -> ProcessInfo:
    for info in await list_processes(link):
        if info.id == id:
            return info
    raise ProcessNotFound(f"sandbox {link.sandbox_id} has no process {id}")


def _info(stream: Stream, entry: ProcessEntry) -> ProcessInfo:
    try:
        status = ExecStatus(entry.status)
    except ValueError:
        raise stream.corrupt(f"unknown status {entry.status[:40]!r}") from None
    code = entry.exit_code
    if (code is None) == (status is ExecStatus.EXITED) or (code is not None and not 0 <= code <= 255):
        raise stream.corrupt(f"status {status.value} with exit code {code}")
    if entry.stdout_bytes < 0 or entry.stderr_bytes < 0:
        raise stream.corrupt("a negative number of bytes")
    return ProcessInfo(
        id=entry.id,
        pid=entry.pid,
        argv=tuple(decode(part) for part in entry.argv),
        user=entry.user,
        status=status,
        exit_code=code,
        signal=entry.signal,
        started_at=entry.started_ms / 1000,
        stdout_bytes=entry.stdout_bytes,
        stderr_bytes=entry.stderr_bytes,
    )
