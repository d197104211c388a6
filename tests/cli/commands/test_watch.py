"""watch: a line an event, at once."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

from tests.cli.conftest import Skerry


def begin(skerry: Skerry, *arguments: str) -> subprocess.Popen[bytes]:
    started: subprocess.Popen[bytes] = skerry.start("watch", *arguments)
    assert started.stderr is not None
    assert started.stderr.readline().startswith(b"watching ")
    return started


def test_watch_prints_each_change_and_ends_on_ctrl_c(skerry: Skerry, box: str) -> None:
    skerry("exec", box, "--", "mkdir", "e")
    started = begin(skerry, box)
    skerry("exec", box, "--", "sh", "-c", "mkdir d; mv d x; : > 'e/two\nlines'; rm -r e")
    assert started.stdout is not None
    lines = [started.stdout.readline().decode() for _ in range(5)]
    assert lines == [
        "created    d/\n",
        "renamed    d -> x/\n",
        "created    e/two\\nlines\n",
        "removed    e/two\\nlines\n",
        "removed    e/\n",
    ]
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=20)
    assert started.returncode == 130


def test_watch_ends_after_a_count_or_a_time(skerry: Skerry, box: str) -> None:
    started = begin(skerry, box, ".", "--no-recursive", "--count", "1", "-o", "json")
    skerry("exec", box, "--", "mkdir", "-p", "a/b")
    out, _ = started.communicate(timeout=20)
    data: Any = json.loads(out)
    assert (started.returncode, data["kind"], data["path"], data["is_dir"]) == (0, "created", "a", True)
    done = skerry("watch", box, "--timeout", "0.1")
    assert (done.code, done.out) == (0, b"")


def test_watch_of_nothing_is_an_error(skerry: Skerry, box: str) -> None:
    done = skerry("watch", box, "nowhere", "-o", "json")
    assert (done.code, done.error["code"]) == (1, "FILE_NOT_FOUND")
    assert "(INVALID_ARGUMENT)" in skerry("watch", box, "--count", "0").err
    assert "(INVALID_ARGUMENT)" in skerry("watch", box, "--timeout", "-1").err
