"""`skerry audit`: the table, the exit code, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.cli.conftest import Skerry

ROOT = Path(__file__).parents[3]
PATH = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def marked_by(pid: int) -> str | None:
    """The name of what an audit has planted, by the arguments of its process; others may run beside it."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (path / "cmdline").read_text().split("\0")
            if arguments[0] == "/bin/sh" and f"PPid:\t{pid}\n" in (path / "status").read_text():
                return arguments[3]
    return None


def test_all_attempts_are_denied_here(skerry: Skerry, nothing_left: None) -> None:
    done = skerry("audit")
    assert done.code == 0, done.text
    heading, *rows = done.text.split("\n\n")[0].splitlines()
    assert heading.split() == ["VERDICT", "AS", "ATTEMPT", "CAME", "BACK", "IF", "IT", "HAD", "WORKED"]
    assert len(rows) > 100
    tried = [row for row in rows if not row.startswith("not tried")]
    assert len(tried) == len(rows) - 3  # those of an open network
    assert all(row.startswith("denied") for row in tried)
    (memory,) = (row for row in rows if "take more memory than its limit" in row)
    assert "killed by SIGKILL" in memory and "user, root" in memory
    assert " were denied, 0 were ALLOWED, 0 could not be tried, 6 do not apply here" in done.text
    assert "isolation: container (provider local, template host, network none)" in done.text
    assert "docs/design/security.md" in done.text


def test_what_is_allowed_is_shown_and_exits_with_1(skerry: Skerry, nothing_left: None) -> None:
    done = skerry("audit", "--provider", "tests.audit.weak:Leaky", "--as", "user", "-o", "json", env=PATH)
    assert done.code == 1, done.err
    assert done.json["allowed"] >= 4
    (found,) = (each for each in done.json["report"]["findings"] if "abstract unix socket of the m" in each["attempt"])
    assert (found["verdict"], found["came_back"], found["user"]) == ("ALLOWED", "'connected'", "user")


def test_an_attempt_without_its_program_is_not_tried_and_exits_with_3(skerry: Skerry, nothing_left: None) -> None:
    done = skerry("audit", "--provider", "tests.audit.weak:OnlyPython", "--as", "root", env=PATH)
    assert done.code == 3, done.text
    (row,) = (row for row in done.text.splitlines() if "become root by a set-user-ID file" in row)
    assert row.split("  ")[0] == "not tried" and "there is no program cat" in row
    assert "0 were ALLOWED, 1 could not be tried" in done.text


def test_an_audit_that_cannot_run_exits_with_3(skerry: Skerry, nothing_left: None) -> None:
    done = skerry("audit", "--provider", "nothing")
    assert (done.code, "there is no provider" in done.err) == (3, True)
    done = skerry("audit", "--provider", "tests.audit.weak:WithoutPython", env=PATH)
    assert (done.code, "choose a template that has it" in done.err) == (3, True)


def test_nothing_is_left_after_ctrl_c(skerry: Skerry, nothing_left: None) -> None:
    before = skerry.ids()
    running = skerry.start("audit")
    until = time.monotonic() + 30
    while not ((marker := marked_by(running.pid)) and skerry.ids() != before) and time.monotonic() < until:
        time.sleep(0.02)
    assert marker
    file, secret = Path("/etc", marker), Path("/usr/local/share", f"{marker}.key")
    assert file.exists() and secret.exists()
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode == 130
    assert not file.exists() and not secret.exists()
    assert marked_by(running.pid) is None
