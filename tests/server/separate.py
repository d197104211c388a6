"""A server in a process of its own, which tests kill and start again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx2

from skerry.server.settings import Settings
from skerry.server.store import Store

ROOT = Path(__file__).parents[2]


class Separate:
    """Listens on one port for all its lives; `key` is an administrator's, `keys` those of plain users."""

    def __init__(self, home: Path, users: Sequence[str] = ()) -> None:
        self.home = home  # not that of another server: there is one for each
        home.mkdir(mode=0o700, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = asyncio.run(_make_key(home))
        self.keys = {name: asyncio.run(_make_key(home, name, admin=False)) for name in users}
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(self.home), str(self.port)],
            env=os.environ
            | {
                "SKERRY_HOME": str(self.home),
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
            },
        )
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert self.process.poll() is None, "the server has ended"
            try:
                httpx2.get(f"{self.url}/health", timeout=5).raise_for_status()
                return
            except httpx2.HTTPError:
                time.sleep(0.05)
        raise TimeoutError("the server did not start")

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)

    @property
    def memory(self) -> int:
        """Resident bytes of the server."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


async def _make_key(home: Path, name: str = "separate", *, admin: bool = True) -> str:
    store = Store.open(Settings(home=home).database)
    try:
        found = [user for user in store.accounts.users() if user.name == name]
        user = found[0] if found else await store.users.add(name, admin=admin)
        return (await store.keys.add(user.id, "separate"))[1]
    finally:
        await store.close()


def main() -> None:
    from skerry.server.app import build_app
    from skerry.server.run.serve import Server

    settings = Settings(home=Path(sys.argv[1]), port=int(sys.argv[2]), rate=0.0)
    Server(build_app(settings), settings).run()


if __name__ == "__main__":
    main()
