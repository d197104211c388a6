"""Every example runs as it is, leaves nothing behind, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted(Path(__file__).parents[1].joinpath("examples").glob("*.py"))

SAYS = {
    "quickstart": ["hello from user 1000", "isolation: container", "create ", "remove "],
    "untrusted_code": ["499500", "timed_out", "out_of_memory", "['user'] False", "Network is unreachable"],
    "streaming": [r"stdout at byte 0: b'1\n'", r"b'25\n'", r"stderr at byte 0: b'done\n'", "exit code 0"],
    "background": ["listening", "hello from inside", "running python3", "GET / HTTP/1.1", "ended: signaled"],
    "files": ["prices.csv", "report/total.txt", "total: 14", "FILE_NOT_FOUND - check the path"],
    "lifecycle": [
        "stopped: stopped",
        "SANDBOX_STOPPED - start it",
        "['remember this', 'second', '']",
        "400000000 bytes: third",
        "frozen: paused",
        "continues: running running",
        "reset: False first",
    ],
    "memory_provider": ["hello", "isolation: none"],
    "templates": [
        "reporter:1: 2 of 3 steps done script 1: make numbers",
        "total: 5050",
        "again: 100",
        "did you mean 'reporter'?",
        "there is node:20.",
        "'pytorch' computes on the CPU",
    ],
    "many": ["1, 4, 9, 16", "20 sandboxes created"],
    "archives": ["key: False", "['1', '4', '9', 'test']", "archived: archived", "UNAUTHENTICATED", "back again: 9"],
    "errors": [
        "exit code 3 stderr oops",
        "timed out: True kept: so far",
        "QUOTA_EXCEEDED",
        "UNSUPPORTED region",
        "CONFLICT",
    ],
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_says_what_it_should(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for words in SAYS[path.stem]:
        assert words in done.stdout
