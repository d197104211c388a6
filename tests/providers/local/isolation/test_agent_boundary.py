"""Attacks on the agent and its channel."""

from __future__ import annotations

import contextlib

from skerry import Sandbox
from skerry.core import errors
from tests.providers.local.isolation.conftest import still_works


def test_the_agent_s_socket_is_not_there(sandbox: Sandbox, attacker: str) -> None:
    found = sandbox.exec("find / -xdev -type s 2>/dev/null; cat /proc/net/unix", user=attacker)
    assert "agent.sock" not in found.stdout
    assert "skerry" not in found.stdout


def test_no_descriptor_of_the_agent_reaches_a_command(sandbox: Sandbox, attacker: str) -> None:
    listing = sandbox.exec(["python3", "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"], user=attacker)
    assert listing.stdout.strip() == "['0', '1', '2', '3']"  # 3 is the directory being listed


def test_the_user_can_kill_neither_supervisor_nor_worker(sandbox: Sandbox) -> None:
    code = "import os\nfor p in [int(n) for n in os.listdir('/proc') if n.isdigit()]:\n"
    code += "  if os.stat(f'/proc/{p}').st_uid != os.getuid():\n    try: os.kill(p, 9); print('killed', p)\n"
    code += "    except (PermissionError, ProcessLookupError): pass\n"
    assert sandbox.exec(["python3", "-c", code]).stdout == ""
    still_works(sandbox)


def test_root_killing_everything_leaves_the_sandbox_usable() -> None:
    with Sandbox.create() as sandbox:
        for _ in range(3):
            with contextlib.suppress(errors.SkerryError):  # it kills the one who would report its exit
                sandbox.exec("kill -9 -1", user="root", timeout=10)
            still_works(sandbox)


def test_root_killing_its_supervisor_leaves_no_stray_process() -> None:
    with Sandbox.create() as sandbox:
        result = sandbox.exec("sleep 900 & kill -9 $PPID; sleep 900", user="root", timeout=10)
        assert result.exit_code is None
        assert result.status in ("signaled", "cancelled", "timed_out")
        left = sandbox.exec("ps -eo args | grep -c '[s]leep 900'")
        assert left.stdout.strip() == "0"
        still_works(sandbox)


def test_stopping_the_workers_does_not_hang_commands() -> None:
    """The sandbox's root may stop its own file workers; it hurts itself only, and only files."""
    with Sandbox.create() as sandbox:
        stop = "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p != 1 ] && [ $p != $$ ] && [ $p != $PPID ] && kill -STOP $p; done; true"
        sandbox.exec(stop, user="root", timeout=10)
        assert sandbox.exec("echo ok", timeout=5).stdout == "ok\n"
