"""Records are replaced as a whole, and those that are to outlive the machine's death are flushed in the right order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.core import atomic_file
from skerry.providers.local.engine import Engine


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed and renamed, in order."""
    seen: list[str] = []
    fsync, rename = os.fsync, os.rename

    def flushed(fd: int) -> None:
        seen.append("flush " + os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    def renamed(source: Path, target: Path) -> None:
        seen.append("rename " + os.path.basename(target))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    return seen


def test_a_file_is_on_disk_before_it_has_its_name_and_the_name_before_the_end(tmp_path: Path, calls: list[str]) -> None:
    atomic_file.replace_file(tmp_path / "record.json", b"new", flush=True)
    assert calls == ["flush record.new", "rename record.json", f"flush {tmp_path.name}"]
    assert (tmp_path / "record.json").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["record.json"]
    assert (tmp_path / "record.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_failure_keeps_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (tmp_path / "record.json").write_bytes(b"old")

    def fail(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        atomic_file.replace_file(tmp_path / "record.json", b"new", flush=True)
    monkeypatch.setattr(os, "write", lambda fd, data: len(data) - 1)  # as a disk that is full in the middle
    with pytest.raises(OSError, match="full"):
        atomic_file.replace_file(tmp_path / "record.json", b"new", flush=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"record.json": b"old"}


def test_a_volume_is_on_disk_before_its_record(
    ready: Engine, monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    storage = type(ready.storage)
    settle = storage.settle

    def settled(self: object, dirty: int) -> None:
        calls.append("commit")
        settle(self, dirty)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "settle", settled)
    ready.volumes.create("data", size=None, temporary=False)
    assert calls == ["commit", "flush data.new", "rename data.json", "flush volumes"]
