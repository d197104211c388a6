"""Homes and databases that earlier versions made open with this one, with everything in them; those of later ones are refused.

`homes/` has one of each kind of storage for each earlier version, made by `make_home.py`; the name sorts by age.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from skerry import Sandbox
from skerry.core.errors import Corrupted, SkerryError, Unsupported
from skerry.core.models import State
from skerry.providers.local import LocalProvider
from skerry.providers.local.engine import Engine
from skerry.server.settings import Settings
from skerry.server.store import Store
from tests.conftest import unmount_below
from tests.server.separate import Separate

HOMES = sorted((Path(__file__).parent / "homes").glob("*.tar.zst"))
PASSWORD = "correct horse battery"


class Home:
    """A home as an earlier version left it, and what that version put into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made: dict[str, str] = json.loads((path / "made.json").read_text())

    def engine(self) -> Engine:
        return Engine(self.path)

    def box(self, which: str) -> Sandbox:
        return Sandbox.get(self.made[which], provider=LocalProvider(self.engine()))


def _unpack(archive: Path, directory: Path) -> Home:
    with subprocess.Popen(["zstd", "-dc", str(archive)], stdout=subprocess.PIPE) as plain:
        unpack = ["tar", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf", "-", "-C", str(directory)]
        subprocess.run(unpack, stdin=plain.stdout, check=True)
    return Home(directory / "home")


def _remove(home: Home) -> None:
    engine = home.engine()
    for info in engine.list():
        engine.destroy(info.id)
    unmount_below(home.path)


@pytest.fixture(scope="module", params=HOMES, ids=lambda path: path.name.partition(".")[0])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    found = _unpack(request.param, tmp_path_factory.mktemp("upgrade"))
    try:
        yield found
    finally:
        _remove(found)


@pytest.fixture
def newest(tmp_path: Path) -> Iterator[Home]:
    found = _unpack(HOMES[-1], tmp_path)
    try:
        yield found
    finally:
        unmount_below(found.path)


def test_there_is_a_home_of_each_kind() -> None:
    assert {path.name.rpartition("-")[2] for path in HOMES} == {"pool.tar.zst", "directory.tar.zst"}


def test_every_sandbox_is_there_in_its_state(home: Home) -> None:
    states = {info.id: info.state for info in home.engine().list()}
    expected = {"box": State.STOPPED, "copy": State.STOPPED, "cold": State.ARCHIVED, "lost": State.FAILED}
    assert {which: states[home.made[which]] for which in expected} == expected
    assert len(states) == len(expected) + 2, "and those of the server's users"


def test_stopped_archived_and_failed_sandboxes_start_with_their_files(home: Home) -> None:
    box, copy, cold, lost = (home.box(which) for which in ("box", "copy", "cold", "lost"))
    for sandbox in (box, copy, cold):
        sandbox.start()
    lost.recover()
    notes = [sandbox.files.read_text("note") for sandbox in (box, copy, cold, lost)]
    assert notes == ["second\n", "second\n", "cold\n", "lost\n"]
    assert box.exec("cat /data/kept; echo $COLOUR").stdout == "kept\ngreen\n"


def test_a_snapshot_is_restored_and_makes_new_sandboxes(home: Home) -> None:
    box = home.box("box")
    box.start()
    (snapshot,) = [found for found in box.snapshots.list() if found.name == "before"]
    with Sandbox.create(snapshot=snapshot.id, provider=LocalProvider(home.engine())) as again:
        assert again.files.read_text("note") == "first\n"
    box.snapshots.restore(snapshot.id)
    assert box.files.read_text("note") == "first\n"


def test_users_sign_in_and_have_what_was_theirs(home: Home) -> None:
    server = Separate(home.path)
    try:
        same = {"sec-fetch-site": "same-origin", "origin": server.url}
        for name in ("mira", "bob"):
            with httpx2.Client(base_url=server.url, headers=same, timeout=30) as browser:
                browser.post("/v1/session", json={"name": name, "password": PASSWORD}).raise_for_status()
                assert browser.get("/v1/session").json()["user"] == name
                shared = browser.get("/v1/sandboxes", params={"project": "team"}).json()
                assert home.made["shared"] in json.dumps(shared)
        key = {"authorization": f"Bearer {home.made['key']}"}
        with httpx2.Client(base_url=server.url, headers=key, timeout=60) as laptop:
            for which in ("hello", home.made["shared"]):
                sandbox = laptop.get(f"/v1/sandboxes/{which}").json()["id"]
                laptop.post(f"/v1/sandboxes/{which}/start", json={}).raise_for_status()
                ran: Any = laptop.post(f"/v1/sandboxes/{which}/exec", json={"command": "cat whose"}).json()
                assert ran["stdout"] == f"{sandbox}\n"
    finally:
        server.stop()


def test_a_record_of_a_newer_version_is_refused_and_not_called_damaged(newest: Home) -> None:
    directory = newest.path / "sandboxes" / newest.made["box"]
    record = json.loads((directory / "record.json").read_text())
    (directory / "record.json").write_text(json.dumps(record | {"version": 1000, "unknown": {}}))
    before = sorted(os.listdir(directory))
    with pytest.raises(Unsupported, match="newer version") as refused:
        newest.box("box")
    assert not isinstance(refused.value, Corrupted) and "damaged" not in str(refused.value)
    listed = {info.id: info for info in newest.engine().list()}[newest.made["box"]]
    assert listed.state is State.FAILED and "newer version" in str(listed.reason)
    newest.engine().sweep()
    assert sorted(os.listdir(directory)) == before


def test_a_snapshot_of_a_newer_version_is_refused_and_kept(newest: Home) -> None:
    path = newest.path / "snapshots" / f"{newest.made['snapshot']}.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"version": 1000, "unknown": {}}))
    with pytest.raises(Unsupported, match="newer version"):
        newest.engine().snapshots.find(newest.made["snapshot"])
    newest.engine().sweep()
    assert path.exists() and (newest.path / "pool" / "snapshots" / newest.made["snapshot"]).is_dir()


def test_a_database_of_a_newer_version_is_refused(newest: Home) -> None:
    (database,) = (newest.path / "server").glob("*.db")
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version=1000")
    connection.close()
    with pytest.raises(SkerryError, match="newer"):
        Store.open(Settings(home=newest.path).database)
