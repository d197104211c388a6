"""export, import, archive, and start with a key: files, pipes, keys, JSON, and what is refused."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.cli.conftest import SKERRY, Skerry
from tests.cli.pty import Terminal

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def key(tmp_path: Path) -> str:
    (tmp_path / "key").write_text("5a" * 32)
    return f"file:{tmp_path}/key"


def test_a_sandbox_goes_to_a_file_and_comes_back(skerry: Skerry, box: str, tmp_path: Path) -> None:
    skerry("exec", box, "--", "sh", "-c", "echo content > file")
    done = skerry("export", box, str(tmp_path / "state"), "-o", "json")
    assert done.code == 0, done.err
    assert (done.json["source"], done.json["files"], done.json["encrypted"]) == (box, 1, False)
    assert done.json["bytes_written"] == (tmp_path / "state").stat().st_size
    made = skerry(
        "import", str(tmp_path / "state"), "--name", "came-back", "--memory", "300MB", "-e", "A=b", "-o", "json"
    )
    assert made.code == 0, made.err
    assert (made.json["name"], made.json["resources"]["memory"]) == ("came-back", 300_000_000)
    assert skerry("exec", "came-back", "--", "sh", "-c", "cat file; echo $A").text == "content\nb\n"
    assert skerry("import", str(tmp_path / "state"), "--name", "came-back").code == 1
    skerry("rm", "came-back")


def test_a_pipe_carries_it_encrypted(skerry: Skerry, box: str, key: str) -> None:
    skerry("exec", box, "--", "sh", "-c", "head -c 2000000 /dev/urandom > file")
    sent = skerry("export", box, "-", "--key", key)
    assert sent.code == 0, sent.err
    assert "encrypted" in sent.err and len(sent.out) > 2_000_000
    made = skerry("import", "-", "--key", key, stdin=sent.out)
    assert made.code == 0, made.err
    sums = [skerry("exec", each, "--", "sha256sum", "file").text for each in (box, made.text.strip())]
    assert sums[0] == sums[1] != ""
    skerry("rm", made.text.strip())
    wrong = skerry("import", "-", "-o", "json", stdin=sent.out)
    assert (wrong.code, wrong.error["code"]) == (1, "UNAUTHENTICATED")
    cut = skerry("import", "-", "--key", key, "-o", "json", stdin=sent.out[:-100])
    assert (cut.code, cut.error["code"]) == (1, "CORRUPTED")


def test_a_snapshot_is_exported_by_its_name(skerry: Skerry, box: str, tmp_path: Path) -> None:
    skerry("exec", box, "--", "sh", "-c", "echo then > file")
    taken = skerry("snapshot", "create", box, "for-export").text.strip()
    skerry("exec", box, "--", "sh", "-c", "echo later > file")
    for name in (taken, "for-export"):
        assert skerry("export", name, str(tmp_path / "state")).code == 0
    made = skerry("import", str(tmp_path / "state")).text.strip()
    assert skerry("exec", made, "--", "cat", "file").text == "then\n"
    skerry("rm", made)
    skerry("snapshot", "rm", taken)
    missing = skerry("export", "for-export", str(tmp_path / "none"), "-o", "json")
    assert (missing.code, missing.error["code"]) == (1, "SANDBOX_NOT_FOUND")
    assert not (tmp_path / "none").exists()


def test_variables_in_a_file_that_is_not_encrypted_are_named(skerry: Skerry, tmp_path: Path, key: str) -> None:
    made = skerry("create", "--env", "PASSWORD=x").text.strip()
    assert "warning: the export has the values of PASSWORD" in skerry("export", made, str(tmp_path / "a")).err
    assert "PASSWORD" not in skerry("export", made, str(tmp_path / "b"), "--key", key).err
    skerry("rm", made)


def test_nothing_binary_goes_to_a_terminal(box: str) -> None:
    with Terminal("export", box, "-") as terminal:
        assert terminal.finish() == 1
    assert b"cannot be written to a terminal" in terminal.output


def test_a_reader_that_goes_away_ends_it_quietly(skerry: Skerry, box: str) -> None:
    skerry("exec", box, "--", "sh", "-c", "head -c 5000000 /dev/urandom > file")
    read, write = os.pipe()
    with subprocess.Popen([SKERRY, "export", box, "-"], stdout=write, stderr=subprocess.PIPE, text=True) as export:
        os.close(write)
        os.read(read, 10)
        os.close(read)
        assert export.stderr is not None
        assert (export.stderr.read(), export.wait(60)) == ("", 141)
    assert skerry("exec", box, "--", "echo", "on").text == "on\n"


@pytest.mark.parametrize("what", ["export", "import"])
def test_a_signal_ends_it_while_the_other_end_of_its_pipe_does_nothing(skerry: Skerry, box: str, what: str) -> None:
    skerry("exec", box, "--", "sh", "-c", "head -c 3000000 /dev/urandom > file")
    snapshots = Path(os.environ["SKERRY_HOME"]) / "snapshots"
    before = set(snapshots.glob("*.json"))
    read, write = os.pipe()
    ends = {"stdout": write} if what == "export" else {"stdin": read}
    arguments = ("export", box, "-") if what == "export" else ("import", "-")
    if what == "import":
        os.write(write, b"\x28\xb5\x2f\xfd")
    with subprocess.Popen([SKERRY, *arguments], stderr=subprocess.PIPE, **ends) as working:
        while (waiting(read) > 0) is (what == "import"):  # until it has begun
            time.sleep(0.01)
        working.send_signal(signal.SIGINT)
        assert working.wait(30) == 130
    os.close(read)
    os.close(write)
    assert skerry("exec", box, "--", "echo", "on").text == "on\n"
    assert set(snapshots.glob("*.json")) == before


def waiting(pipe: int) -> int:
    """How many bytes nobody has read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_archive_and_start_with_a_key(skerry: Skerry, box: str, key: str) -> None:
    skerry("exec", box, "--", "sh", "-c", "echo kept > file")
    done = skerry("archive", box, "no-such-one", "--key", key)
    assert (done.code, done.text) == (1, f"{box}\n")
    assert "(SANDBOX_NOT_FOUND)" in done.err
    assert skerry("info", box, "-o", "json").json["state"] == "archived"
    refused = skerry("start", box, "-o", "json")
    assert (refused.code, refused.error["code"]) == (1, "UNAUTHENTICATED")
    assert "SKERRY_ARCHIVE_KEY" in refused.error["hint"]
    assert skerry("exec", box, "true").code == 125
    assert skerry("exec", box, "--", "cat", "file", env={"SKERRY_ARCHIVE_KEY": key}).text == "kept\n"
    assert skerry("archive", box, "--key", key, "-o", "json").json[0]["state"] == "archived"
    assert skerry("start", box, "--key", key).text == f"{box}\n"
    assert skerry("exec", box, "--", "cat", "file").text == "kept\n"


def test_what_cannot_be_read_or_written_is_one_line(skerry: Skerry, box: str, tmp_path: Path) -> None:
    for arguments, code in (
        (("import", str(tmp_path / "none")), "FILE_NOT_FOUND"),
        (("import", "/etc/hostname"), "INVALID_ARGUMENT"),
        (("export", box, str(tmp_path / "no/file")), "FILE_NOT_FOUND"),
        (("export", box, "/dev/full"), "DISK_FULL"),
        (("export", box, str(tmp_path / "x"), "--key", "nothing"), "INVALID_ARGUMENT"),
        (("archive", box, "--key", "file:/none"), "INVALID_ARGUMENT"),
    ):
        done = skerry(*arguments, "-o", "json")
        assert (done.code, done.error["code"]) == (1, code), arguments
    assert os.listdir(tmp_path) == []
