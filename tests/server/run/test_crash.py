"""A server that is killed under load: whatever it has answered is so when it runs again, and nothing is left over."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest

ROUNDS = int(os.environ.get("SKERRY_UP_KILLS", "2"))


class Program:
    """`skerry up`, as somebody starts it."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "skerry", "up", "--port", str(port), "--link", "-o", "json"]
        log = Path(os.environ["SKERRY_HOME"]) / "log-of-the-test"
        with open(log, "a") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, log.read_text()[-2000:]
            text += line
        self.told = json.loads(text)
        self.url = str(self.told["url"])
        self.key = Path(self.told["key_file"]).read_text().strip()

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, headers={"authorization": f"Bearer {self.key}"}, timeout=30)


class Load:
    """Works until the server is gone, and keeps what it was told."""

    def __init__(self, program: Program, number: int) -> None:
        self.boxes: dict[str, list[str]] = {}
        self.gone: list[str] = []
        self.users: list[str] = []
        self._client, self._number = program.client(), number
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._client as client:
            try:
                for turn in range(10_000):
                    self._turn(client, turn)
            except httpx2.TransportError:
                pass

    def _turn(self, client: httpx2.Client, turn: int) -> None:
        box = client.post("/v1/sandboxes", json={"name": f"load{self._number}-{turn}"}).raise_for_status().json()["id"]
        self.boxes[box] = []
        for number in range(3):
            command = {"command": f"echo {number} >> /workspace/log"}
            client.post(f"/v1/sandboxes/{box}/exec", json=command).raise_for_status()
            self.boxes[box].append(str(number))
        name = f"user-{secrets.token_hex(8)}"
        client.post("/v1/users", json={"name": name}).raise_for_status()
        self.users.append(name)
        if turn % 2:
            # Noted before: the answer may be lost, and then it may be gone or not.
            del self.boxes[box]
            client.delete(f"/v1/sandboxes/{box}").raise_for_status()
            self.gone.append(box)

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.mark.soak
def test_what_a_killed_server_has_answered_is_so_when_it_runs_again(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_home.mkdir()
    monkeypatch.setenv("SKERRY_HOME", str(own_home))
    monkeypatch.setenv("SKERRY_SERVER_RATE", "0")
    program = Program(0)
    port = int(program.url.rsplit(":", 1)[1])
    users: set[str] = set()
    session = httpx2.Client(base_url=program.url, headers={"sec-fetch-site": "same-origin"}, timeout=30)
    try:
        session.post("/v1/session", json={"link": program.told["link"].partition("#")[2]}).raise_for_status()
        last = 0
        for _ in range(ROUNDS):
            loads = [Load(program, number) for number in range(3)]
            end = time.monotonic() + 60
            while sum(len(load.users) for load in loads) < 12 and time.monotonic() < end:
                time.sleep(0.02)
            os.kill(program.process.pid, signal.SIGKILL)
            program.process.communicate()
            for load in loads:
                load.join()
                users |= set(load.users)
            assert sum(len(load.users) for load in loads) >= 12
            program = Program(port)
            with program.client() as client:
                there = {item["id"]: item for item in client.get("/v1/sandboxes?limit=1000").json()["items"]}
                for load in loads:
                    for box, lines in load.boxes.items():
                        assert there[box]["state"] == "running" and there[box]["project"]
                        log = client.post(f"/v1/sandboxes/{box}/exec", json={"command": "cat /workspace/log"}).json()
                        # A command whose answer was lost may have run.
                        assert log["stdout"].split()[: len(lines)] == lines
                    assert not set(load.gone) & there.keys()
                assert users <= {item["name"] for item in client.get("/v1/users").json()["items"]}
                events = client.get(f"/v1/events?since={last}&limit=1000").json()
                seen = [item["seq"] for item in events["items"]]
                assert seen == sorted(set(seen))
                created = [item["sandbox_id"] for item in events["items"] if item["type"] == "created"]
                assert {box for load in loads for box in load.boxes} <= set(created)
                assert len(created) == len(set(created))
                last = int(events["cursor"])
                for box, item in there.items():
                    if (item["name"] or "").startswith("load"):
                        client.delete(f"/v1/sandboxes/{box}").raise_for_status()
            assert session.get("/v1/session").json()["user"] == "admin"
    finally:
        session.close()
        program.process.terminate()
        program.process.communicate(timeout=30)
        assert program.process.returncode == 0
