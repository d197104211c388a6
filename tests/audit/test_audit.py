"""The audit tells what is denied from what is allowed, and from what was never tried."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
from pathlib import Path

import anyio
import pytest

from skerry.audit import Attempt, Report, Verdict, audit
from skerry.audit.attack import PROGRAM, message
from skerry.audit.attempt import Answer, How, judge
from skerry.audit.attempts import ATTEMPTS, CALLS, HOST, LIMITS, NETWORK
from skerry.audit.planted import Planted
from skerry.core import Unsupported
from skerry.providers.local import LocalProvider
from skerry.providers.local.launch import bundle
from skerry.providers.remote import RemoteProvider
from tests.audit.weak import Leaky, WithoutLimits, WithoutPython
from tests.server.conftest import Running

BY_NAME = {attempt.name: attempt for attempt in ATTEMPTS}


def verdicts(report: Report) -> dict[tuple[str, str], Verdict]:
    return {(finding.attempt, finding.user): finding.verdict for finding in report.findings}


def allowed(report: Report) -> set[str]:
    return {finding.attempt for finding in report.findings if finding.verdict is Verdict.ALLOWED}


def attempt(name: str, body: str) -> Attempt:
    return Attempt(name=name, means="", body=body)


# -- it notices what a weak sandbox lets through


async def test_a_file_and_a_socket_of_the_machine_inside_are_allowed() -> None:
    report = await audit(Leaky(), users=["user"], attempts=HOST)
    assert allowed(report) == {
        "read files of the machine in ten public directories",
        "find a file of the machine anywhere",
        "find a process of the machine",  # whose arguments say the name
        "connect to an abstract unix socket of the machine",
    }


async def test_without_the_filter_of_calls_many_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    monkeypatch.setattr(bundle, "_filter", lambda: base64.b64encode(everything).decode())
    report = await audit("local", attempts=CALLS)
    found = verdicts(report)
    assert found["unshare a user namespace", "user"] is Verdict.ALLOWED
    assert found["clone a user namespace", "user"] is Verdict.ALLOWED
    assert found["clone3 a user namespace", "root"] is Verdict.ALLOWED
    assert found["queue asynchronous file requests", "user"] is Verdict.ALLOWED
    assert found["add_key", "user"] is Verdict.ALLOWED
    assert found["reboot", "root"] is Verdict.DENIED  # the sandbox's root is nobody to the kernel
    assert report.incomplete == []


WORK_OUTSIDE = {
    *(attempt.name for attempt in HOST if "file" in attempt.name or "socket" in attempt.name),
    *("find a variable of the program that made the sandbox", "change /etc/passwd"),
    *("connect to a port of the machine on 127.0.0.1", "mount a tmpfs", "mount proc again", "bind / elsewhere"),
    *("unmount something", "pivot_root", "fsopen", "open_tree", "move_mount", "mount_setattr", "reboot"),
    *(name for name in BY_NAME if name.startswith("unshare") or "clone" in name or "process 1" in name),
    *("keyctl", "add_key", "bpf", "swapon", "set the host name", "queue asynchronous file requests"),
    *("read /proc/1/maps", "read /proc/1/environ", "list /proc/1/map_files", "make a kvm device", "open a raw socket"),
    *("hold rights that reach the machine", "raise its priority"),
    *("become root by a set-user-ID file", "start more processes than its limit", "start more threads than its limit"),
    *("fill shared memory", "take more memory than its limit", "write more than its disk limit"),
} - {"kill process 1"}
"""Of most attempts an error of the attempt itself would look like a denial: these must be seen to work."""


def test_attempts_work_where_nothing_denies_them() -> None:
    """As root of this machine, in namespaces where what they do stays."""
    attempts = [BY_NAME[name] for name in BY_NAME if name in WORK_OUTSIDE]
    assert len(attempts) == len(WORK_OUTSIDE) > 50
    with Planted(open_network=False) as planted:
        given = planted.given | {"pids": 20, "memory": 16 << 20, "disk": 8 << 20}
        outside = ["unshare", "--mount-proc", "--pid", "--fork", "--uts", "--ipc", *PROGRAM]
        work = message(attempts, given)
        done = subprocess.run(outside, input=work, capture_output=True, text=True, check=True, timeout=100)
        changes = planted.changes()
    answers = [Answer(*json.loads(line)) for line in done.stdout.splitlines()[1::2]]
    found = {each.name: answer for each, answer in zip(attempts, answers, strict=True)}
    not_allowed = {
        name: answer for name, answer in found.items() if judge(BY_NAME[name], answer) is not Verdict.ALLOWED
    }
    assert not_allowed == {}
    assert any("was made" in change for change in changes)
    assert any("is gone" in change for change in changes)


# -- it says "denied" only of what was tried


@pytest.mark.parametrize(
    ("how", "what", "verdict"),
    [
        ("error", "EPERM", Verdict.DENIED),
        ("error", "EINVAL", Verdict.NOT_TRIED),  # the arguments were wrong
        ("error", "ENOENT", Verdict.NOT_TRIED),  # so was the path
        ("error", "ESTALE", Verdict.ALLOWED),
        ("silent", "no answer", Verdict.NOT_TRIED),  # nobody may be there
        ("killed", "SIGSYS", Verdict.DENIED),
        ("killed", "SIGKILL", Verdict.NOT_TRIED),
        ("killed", "SIGSEGV", Verdict.NOT_TRIED),
        ("stuck", "it did not end within 10 s", Verdict.NOT_TRIED),
        ("broken", "NameError", Verdict.NOT_TRIED),
        ("returned", "None", Verdict.ALLOWED),
    ],
)
def test_an_answer_that_proves_nothing_is_not_a_denial(how: How, what: str, verdict: Verdict) -> None:
    called = Attempt(name="call", means="", body="", agreed=frozenset({"ESTALE"}))
    assert judge(called, Answer(how, what)) is verdict


async def test_what_cannot_be_tried_is_told_with_its_reason() -> None:
    report = await audit(
        "local",
        users=["user"],
        attempts=[
            attempt("a missing program", "raise NotTried('there is no such program')"),
            attempt("a mistake", "return no_such_name"),
            attempt("kill the attack program", "os.kill(os.getppid(), 9)"),
            attempt("the one after it", "raise OSError(errno.EPERM, '')"),
            BY_NAME["connect to another sandbox by its address"],
        ],
    )
    assert [(each.came_back, each.verdict, each.expected) for each in report.findings[:5]] == [
        ("there is no such program", Verdict.NOT_TRIED, False),
        ("NameError: name 'no_such_name' is not defined", Verdict.NOT_TRIED, False),
        ("the attack program ended with it", Verdict.NOT_TRIED, False),
        ("EPERM", Verdict.DENIED, False),
        ("the network is 'none'", Verdict.NOT_TRIED, True),
    ]
    assert len(report.incomplete) == 3


async def test_an_attempt_that_ends_the_sandbox_is_allowed_and_the_rest_was_not_tried() -> None:
    provider = LocalProvider()
    waiting = attempt("end it", "os.mkdir('/tmp/begun')\ntime.sleep(9)")

    async def end() -> None:
        while True:
            for path in (provider.engine.store.home / "pool/uppers").glob("*/u/tmp/begun"):
                await provider.destroy(path.parents[2].name)
                return
            await anyio.sleep(0.02)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end)
        report = await audit(provider, users=["user"], attempts=[waiting, attempt("later", "return 1")])
    found = verdicts(report)
    assert (found["end it", "user"], found["later", "user"]) == (Verdict.ALLOWED, Verdict.NOT_TRIED)


async def test_limits_that_the_provider_cannot_set_are_not_tried_and_said_so() -> None:
    report = await audit(WithoutLimits(), users=["user"], attempts=LIMITS)
    left_out = {each.attempt: each.came_back for each in report.findings if each.expected}
    assert left_out == {
        "start more processes than its limit": "no limit of pids here",
        "start more threads than its limit": "no limit of pids here",
        "write more than its disk limit": "no limit of disk here",
    }
    assert report.count(Verdict.NOT_TRIED) == 3


async def test_a_sandbox_without_python_is_told() -> None:
    with pytest.raises(Unsupported, match="has no python3"):
        await audit(WithoutPython())


# -- other providers and networks


async def test_an_open_network_leads_neither_to_the_machine_nor_to_another_sandbox() -> None:
    report = await audit("local", users=["root"], network="open", attempts=NETWORK)
    assert (allowed(report), report.incomplete) == (set(), [])
    silent = {each.attempt for each in report.findings if each.came_back == "no answer"}
    assert "connect to the machine by its own addresses" in silent


@pytest.mark.long
async def test_through_a_server_all_but_the_machine_itself_is_attacked(tmp_path: Path) -> None:
    running = Running(tmp_path / "server")
    provider = RemoteProvider(running.url, api_key=running.key("somebody"))
    try:
        with anyio.fail_after(100):
            report = await audit(provider)
    finally:
        await anyio.to_thread.run_sync(provider.close)
        await anyio.to_thread.run_sync(running.stop)
    assert (report.provider, allowed(report), report.incomplete) == ("remote", set(), [])
    left_out = {each.attempt for each in report.findings if each.expected}
    assert left_out == {each.name for each in ATTEMPTS if each.needs & {"host", "open"}}
    assert report.count(Verdict.DENIED) > 200


def test_what_is_planted_is_gone_afterwards_even_if_planting_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(marker: str) -> list[str]:
        places = [*("/etc", "/tmp", "/var/tmp", "/run", "/usr/local/share")]
        return [name for place in places for name in os.listdir(place) if name.startswith(marker)]

    with Planted(open_network=False) as planted:
        pid = planted.given["pid"]
        assert len(left(planted.marker)) >= 7
        assert os.environ["AUDIT_MARK"]
    assert left(planted.marker) == []
    assert not Path(f"/proc/{pid}").exists()
    assert "AUDIT_MARK" not in os.environ
    fails = Planted(open_network=False)
    monkeypatch.setattr("skerry.audit.planted._server", lambda everywhere: Planted(open_network=False).given)
    with pytest.raises(AttributeError), fails:
        pass
    assert left(fails.marker) == []


def test_every_attempt_is_a_program_and_says_what_it_would_have_meant() -> None:
    assert len(BY_NAME) == len(ATTEMPTS) > 100
    for each in ATTEMPTS:
        compile("def attack():" + "".join(f"\n    {line}" for line in each.body.splitlines()), each.name, "exec")
        assert each.means.endswith(".") and each.means[0].isupper()
