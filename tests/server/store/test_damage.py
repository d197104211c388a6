"""Damaged databases, their backups, and full disks: the server says what is wrong, and nothing half made stays."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sqlite3
import subprocess
import threading
import time
from pathlib import Path

import anyio
import pytest

from skerry.core.errors import Corrupted, DiskFull, ProviderUnavailable
from skerry.server.run import instance
from skerry.server.store import Store
from skerry.server.store.sqlite import migrations
from skerry.server.store.sqlite.backup import back_up, backups, schema_of
from tests.server.conftest import Running


def some_store(directory: Path, users: int = 50) -> Path:
    async def fill() -> None:
        store = Store.open(directory / "skerry.db")
        for number in range(users):
            await store.users.add(f"user{number}", admin=number == 0)
        await store.close()

    anyio.run(fill)
    return directory / "skerry.db"


def test_a_damaged_database_is_refused_with_the_newest_backup_named(tmp_path: Path) -> None:
    path = some_store(tmp_path)
    older = back_up(path, target=tmp_path / "backups" / "skerry-20200101T000000Z.db")
    newest = back_up(path)
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * 20_000)
    with pytest.raises(Corrupted) as refusal:
        Store.open(tmp_path / "skerry.db")
    assert str(newest) in refusal.value.hint and str(older) not in refusal.value.hint
    path.write_bytes(b"this is no database at all, and longer than a header would be" * 100)
    with pytest.raises(Corrupted, match="damaged"):
        Store.open(tmp_path / "skerry.db")
    path.unlink()
    newest.rename(path)
    restored = Store.open(tmp_path / "skerry.db")
    assert len(restored.accounts.users()) == 50
    anyio.run(restored.close)


def test_a_database_is_restored_by_what_the_refusal_says(tmp_path: Path) -> None:
    path, left = some_store(tmp_path, users=20), tmp_path / "left"
    backup = back_up(path)
    left.mkdir()
    open_ = sqlite3.connect(path)
    open_.execute("PRAGMA wal_autocheckpoint=0")
    with open_:  # as a server that is killed leaves it: the last changes are in the -wal alone
        open_.execute("UPDATE users SET name = name || '-' || hex(randomblob(2000))")
    for file in ("skerry.db", "skerry.db-wal"):
        shutil.copy(tmp_path / file, left)
    open_.close()
    shutil.copytree(tmp_path / "backups", left / "backups")
    path = left / "skerry.db"
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    with pytest.raises(Corrupted) as refusal:
        Store.open(path)
    hint = refusal.value.hint
    gc.collect()
    for name in re.findall(r"\S*/skerry\.db(?:-wal|-shm)?(?=,| and | away)", hint):
        Path(name).unlink(missing_ok=True)
    shutil.copy(hint.rpartition(" ")[2], path)
    restored = Store.open(path)
    assert {user.name for user in restored.accounts.users()} == {f"user{number}" for number in range(20)}
    anyio.run(restored.close)
    assert backup.name in hint


def test_a_backup_taken_while_others_write_is_whole(tmp_path: Path) -> None:
    path = some_store(tmp_path, users=2000)
    stop = threading.Event()

    def write() -> None:
        db = sqlite3.connect(path, timeout=20)
        number = 0
        while not stop.is_set():
            db.execute("INSERT INTO server_secrets VALUES (?, zeroblob(5000))", (f"n{number}",))
            db.commit()
            number += 1
        db.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        made = [back_up(path, target=tmp_path / f"copy{number}.db") for number in range(3)]
    finally:
        stop.set()
        writer.join()
    for copy in made:
        db = sqlite3.connect(copy)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM users").fetchone() == (2000,)
        db.close()
        assert copy.stat().st_mode & 0o077 == 0


def test_only_so_many_backups_are_kept(tmp_path: Path) -> None:
    path = some_store(tmp_path, users=1)
    for number in range(5):
        back_up(path, target=tmp_path / "backups" / f"skerry-2020010{number}T000000Z.db")
    back_up(path, keep=3)
    assert len(backups(tmp_path)) == 3


def test_restarts_do_not_push_older_backups_out(tmp_path: Path) -> None:
    directory = tmp_path / "home" / "server"
    directory.mkdir(parents=True)
    path = some_store(directory, users=1)
    older = back_up(path, target=directory / "backups" / "skerry-20200101T000000Z.db")
    os.utime(older, (1, 1))
    for _ in range(3):
        running = Running(tmp_path / "home", backups_kept=2)
        end = time.monotonic() + 20
        while len(backups(directory)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(1.1)  # another one would have another name
        running.stop()
    assert len(backups(directory)) == 2 and older.exists()


def test_nothing_stays_of_a_backup_that_was_killed(tmp_path: Path) -> None:
    path = some_store(tmp_path, users=1)
    (tmp_path / "backups").mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()
    for name in (f".skerry-20200101T000000Z.db.{gone.pid}", f".skerry-20200101T000000Z.db.{gone.pid}-journal"):
        (tmp_path / "backups" / name).write_bytes(b"half")
    theirs = tmp_path / "backups" / ".skerry-20200101T000000Z.db.1"
    theirs.write_bytes(b"of one that runs")
    made = back_up(path)
    assert set((tmp_path / "backups").iterdir()) == {made, theirs}


def test_a_backup_without_room_is_told_as_that(tmp_path: Path, small: Path) -> None:
    path = some_store(tmp_path, users=1)
    db = sqlite3.connect(path)
    with db:
        db.execute("INSERT INTO server_secrets VALUES ('large', zeroblob(4000000))")
    db.close()
    with pytest.raises(DiskFull):
        back_up(path, target=small / "copy.db")
    assert list(small.iterdir()) == []


def test_a_database_of_a_newer_skerry_is_refused(tmp_path: Path) -> None:
    path = some_store(tmp_path, users=1)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(ProviderUnavailable, match="newer") as refusal:
        Store.open(tmp_path / "skerry.db")
    assert "backup" not in refusal.value.hint
    of_before, newest = (tmp_path / "backups" / f"skerry-2020010{number}T000000Z.db" for number in (1, 2))
    back_up(path, target=newest)
    shutil.copy(newest, of_before)
    db = sqlite3.connect(of_before)
    db.execute("PRAGMA user_version=1")
    db.close()
    with pytest.raises(ProviderUnavailable) as refusal:
        Store.open(tmp_path / "skerry.db")
    assert str(of_before) in refusal.value.hint and str(newest) not in refusal.value.hint


def test_a_database_is_backed_up_before_it_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "skerry.db"
    first = min(file for file in Path(migrations.__path__[0]).iterdir() if file.suffix == ".sql")
    db = sqlite3.connect(path)
    db.executescript(f"{first.read_text()}\nPRAGMA user_version=1;")
    db.execute("INSERT INTO users (id, name, created_at) VALUES ('us-1', 'of before', 1)")
    db.commit()
    db.close()
    store = Store.open(tmp_path / "skerry.db")
    assert [user.name for user in store.accounts.users()] == ["of before"]
    anyio.run(store.close)
    (before,) = backups(tmp_path)
    assert (schema_of(before), schema_of(path) > 1) == (1, True)
    anyio.run(Store.open(tmp_path / "skerry.db").close)
    assert backups(tmp_path) == [before]


def fill_up(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_is_told_and_survived(small: Path) -> None:
    running = Running(small, backups_kept=0)
    try:
        with running.client_of("owner") as client:
            ballast = small / "ballast"
            with pytest.raises(OSError, match="No space"):
                fill_up(ballast)
            said = [client.post("/v1/projects", json={"name": f"{number}" + "x" * 90}) for number in range(100)]
            refused = [answer for answer in said if answer.status_code != 201]
            assert refused and {answer.json()["code"] for answer in refused} == {"DISK_FULL"}
            assert {answer.status_code for answer in refused} == {507}
            assert client.get("/v1/projects").status_code == 200
            ballast.unlink()
            assert client.post("/v1/projects", json={"name": "there is room again"}).status_code == 201
            made = {answer.json()["id"] for answer in said if answer.status_code == 201}
            assert made <= {item["id"] for item in client.get("/v1/projects").json()["items"]}
    finally:
        running.stop()


def test_nothing_stays_of_a_start_without_room(small: Path) -> None:
    (small / "server").mkdir()
    with pytest.raises(OSError, match="No space"):
        fill_up(small / "ballast")
    with pytest.raises(OSError, match="No space"), instance.claimed(small / "server"):
        pass
    assert [file.name for file in (small / "server").iterdir()] == ["lock"]
