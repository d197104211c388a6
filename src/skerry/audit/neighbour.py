"""A second sandbox with a file, a process and servers, which nothing in the first may notice."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from skerry.core import SkerryError
from skerry.sdk import AsyncSandbox

_PROGRAM = """
import json, pathlib, socket, subprocess, sys, time
marker = sys.argv[1]
for place in ("/tmp", "/var/tmp", "/dev/shm", str(pathlib.Path.home())):
    try:
        (pathlib.Path(place) / marker).write_text(marker)
    except OSError:
        pass
unix = socket.socket(socket.AF_UNIX)
unix.bind("\\0" + marker)
unix.listen(64)
server = socket.create_server(("", 0), backlog=64)
addresses = []
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    probe.connect(("203.0.113.1", 53))  # sends nothing, and says the sandbox's own address
    addresses.append(probe.getsockname()[0])
    socket.create_connection((addresses[0], server.getsockname()[1]), 3).close()
except OSError:
    pass
print(json.dumps({"marker": marker, "port": server.getsockname()[1], "addresses": addresses}), flush=True)
time.sleep(3600)
"""


@asynccontextmanager
async def planted_in(sandbox: AsyncSandbox) -> AsyncIterator[dict[str, Any]]:
    """What the attack program is told, to look for. Raises SkerryError if the sandbox cannot be marked."""
    marker = f"skerry-neighbour-{secrets.token_hex(8)}"
    stream = sandbox.exec_stream(["python3", "-I", "-c", _PROGRAM, marker], timeout=1800)
    async with stream:
        async for line in stream.lines():
            yield json.loads(line)
            return
        ended = await stream.wait()
        raise SkerryError(f"the second sandbox could not be marked: {ended.stderr.strip()[-300:]}")


async def answers(sandbox: AsyncSandbox) -> bool:
    """Whether it runs a command within some seconds."""
    try:
        with anyio.fail_after(20):
            return (await sandbox.exec(["python3", "-I", "-c", ""], timeout=10)).exit_code == 0
    except (SkerryError, TimeoutError):
        return False
