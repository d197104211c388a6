"""Health checks, instructions and waiting for a state, in real sandboxes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator

import anyio
import pytest

from skerry import (
    AsyncSandbox,
    HealthCheck,
    InstructionsContext,
    InvalidArgument,
    Sandbox,
    SandboxNotFound,
    State,
    Timeout,
)
from tests import inventory

BUILT_IN = {"agent", "command", "disk", "memory", "workdir"}


@pytest.fixture
async def box() -> AsyncIterator[AsyncSandbox]:
    async with await AsyncSandbox.create(timeout=300) as sandbox:
        with anyio.fail_after(90):
            yield sandbox


async def test_a_sandbox_that_works_is_healthy(box: AsyncSandbox) -> None:
    report = await box.health_check()
    assert report.healthy and set(report.checks) == BUILT_IN
    assert all(check.healthy and check.reason is None and check.duration > 0 for check in report.checks.values())
    assert await box.files.list() == []


async def test_each_own_check_has_its_outcome_and_reason(box: AsyncSandbox) -> None:
    async def asks(sandbox: AsyncSandbox) -> bool:
        return (await sandbox.exec("exit 3")).exit_code == 3

    async def hangs(sandbox: AsyncSandbox) -> None:
        await anyio.sleep_forever()

    def raises(sandbox: AsyncSandbox) -> bool:
        raise KeyError("mine")

    report = await box.health_check(
        {
            "asks": asks,
            "nothing": lambda sandbox: None,
            "false": lambda sandbox: False,
            "reason": lambda sandbox: "the moon is full",
            "number": lambda sandbox: 1,
            "raises": raises,
            "hangs": HealthCheck(hangs, timeout=0.2),
            "shell": "test -d /workspace",
            "fails": "echo no luck >&2; exit 4",
            "slow": HealthCheck("sleep 600", timeout=0.2),
        }
    )
    assert not report.healthy
    found = {name: check.reason for name, check in report.checks.items() if name not in BUILT_IN}
    assert found == {
        "asks": None,
        "nothing": None,
        "false": "the check returned False",
        "reason": "the moon is full",
        "number": "the check returned int: neither a bool, a reason nor the result of a command",
        "raises": "KeyError: 'mine'",
        "hangs": "no answer within 0.2 s",
        "shell": None,
        "fails": "exit code 4: no luck",
        "slow": "no answer within 0.2 s",
    }
    assert all(check.healthy for name, check in report.checks.items() if name in BUILT_IN)
    await box.exec("while ps -A -o comm= | grep -qx sleep; do :; done", timeout=30, check=True)  # it was killed


async def test_the_result_of_a_command_is_an_answer(box: AsyncSandbox) -> None:
    report = await box.health_check(
        {
            "good": lambda sandbox: sandbox.exec("python3 --version"),
            "bad": lambda sandbox: sandbox.exec("echo no luck >&2; exit 4"),
            "late": lambda sandbox: sandbox.exec("sleep 600", timeout=0.2),
        }
    )
    found = {name: check.reason for name, check in report.checks.items() if name not in BUILT_IN}
    late = found.pop("late")
    assert found == {"good": None, "bad": "exit code 4: no luck"}
    assert late is not None and late.startswith("sleep 600 ran out of time after 0.2")
    assert report.checks["good"] and not report.checks["bad"]
    assert not report
    assert await box.health_check({"good": lambda sandbox: sandbox.exec("true")})


async def test_what_is_wrong_inside_is_found(box: AsyncSandbox) -> None:
    await box.exec("chmod 555 /workspace", sudo=True, check=True)
    report = await box.health_check()
    assert [name for name, check in report.checks.items() if not check.healthy] == ["workdir"]
    assert "PERMISSION_DENIED" in str(report.checks["workdir"].reason)
    replaced = await box.health_check({"workdir": "true"})
    assert replaced.healthy and set(replaced.checks) == BUILT_IN


async def test_memory_at_its_limit_is_not_healthy() -> None:
    async with await AsyncSandbox.create(timeout=300) as box:
        program = "x = b'x' * 300_000_000; print('full', flush=True); input()"
        hog = await box.processes.spawn(["python3", "-c", program], stdin=True)
        async for _ in hog:
            break
        assert (await box.health_check()).checks["memory"].healthy
        used = (await box.usage()).memory_used
        await box.set_limits(memory=used * 104 // 100)
        reason = (await box.health_check()).checks["memory"].reason
        assert reason is not None and "bytes are used" in reason


async def test_a_dead_sandbox_has_a_report() -> None:
    box = await AsyncSandbox.create(timeout=300)
    await box.destroy()
    report = await box.health_check({"own": "true", "python": lambda sandbox: True})
    assert not report.healthy
    assert {name for name, check in report.checks.items() if check.healthy} == {"python"}
    assert "SANDBOX_NOT_FOUND" in str(report.checks["agent"].reason)


@pytest.mark.parametrize("checks", [{"x": 5}, {"": "true"}, {"x": ""}, {"x": HealthCheck("true", timeout=0)}, ["true"]])
async def test_a_check_that_is_none_is_refused(checks: object, box: AsyncSandbox) -> None:
    with pytest.raises(InvalidArgument):
        await box.health_check(checks)  # type: ignore[arg-type]


def test_blocking_checks_get_the_blocking_sandbox() -> None:
    with Sandbox.create(timeout=300) as sandbox:
        gate = threading.Event()
        report = sandbox.health_check(
            {
                "runs": lambda given: given is sandbox and given.exec("echo x").stdout == "x\n",
                "hangs": HealthCheck(lambda given: gate.wait(60), timeout=0.2),
                "shell": HealthCheck("true"),
            }
        )
        gate.set()
        assert {name: check.reason for name, check in report.checks.items() if not check.healthy} == {
            "hangs": "no answer within 0.2 s"
        }
        assert sandbox.health_check().healthy


async def test_instructions_say_what_is_really_there(box: AsyncSandbox) -> None:
    text = await box.instructions()
    for part in ("/workspace", "'user'", "python3", "2 CPU cores", "2 GB", "512 processes", "Network: none", "'host'"):
        assert part in text, part
    assert "5 minutes" in text
    await box.exec("mkdir bin; printf '#!/bin/sh\\n' > bin/deno; chmod +x bin/deno", check=True)
    await box.env.set("PATH", "/workspace/bin:/nowhere")
    text = await box.instructions(extra="Be kind.")
    assert "deno" in text and "python3" not in text
    assert text.endswith("\n\nBe kind.")


async def test_instructions_can_be_replaced_by_text_or_a_function() -> None:
    async with await AsyncSandbox.create(timeout=300, instructions="Only this.") as box:
        assert await box.instructions() == "Only this."
        assert await (await AsyncSandbox.get(box.id)).instructions() == "Only this."
        assert await box.instructions(extra="And that.") == "Only this.\n\nAnd that."

    def shout(given: InstructionsContext) -> str:
        assert given.info.workdir == "/workspace" and "python3" in given.tools
        return f"{given.context}: {given.default.upper()}"

    async def later(given: InstructionsContext) -> str:
        return shout(given)

    for function in (shout, later):
        async with await AsyncSandbox.create(timeout=300, instructions=function) as box:
            assert (await box.instructions(context="task 7")).startswith("task 7: YOU WORK IN")
    async with await AsyncSandbox.create(timeout=300, instructions=lambda given: None) as box:  # type: ignore[arg-type,return-value]
        with pytest.raises(InvalidArgument):
            await box.instructions()
    with pytest.raises(InvalidArgument):
        await AsyncSandbox.create(instructions=5)  # type: ignore[arg-type]


def test_blocking_instructions() -> None:
    with Sandbox.create(timeout=300, instructions=lambda given: given.default[:3]) as sandbox:
        assert sandbox.instructions() == "You"


async def test_waiting_for_a_state_ends_when_it_is_there() -> None:
    box = await AsyncSandbox.create(timeout=300)
    other = await AsyncSandbox.get(box.id)
    info = await other.wait_for_state("running", timeout=5)
    assert (info.id, info.state) == (box.id, State.RUNNING)
    with pytest.raises(InvalidArgument):
        await other.wait_for_state("runing")
    with pytest.raises(Timeout, match="still running"):
        await other.wait_for_state(State.STOPPED, timeout=0.1)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            states = []

            async def wait() -> None:
                states.append((await other.wait_for_state(State.DESTROYED)).state)

            group.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            await box.destroy()
    assert states == [State.DESTROYED]
    with pytest.raises(SandboxNotFound):
        await other.wait_for_state("running")
    await other.close()


async def test_a_sandbox_that_is_killed_becomes_failed() -> None:
    box = await AsyncSandbox.create(timeout=300)
    try:
        os.kill(inventory.first_process_of(box.id), signal.SIGKILL)
        info = await box.wait_for_state(State.FAILED, timeout=30)
        assert info.reason
        report = await box.health_check()
        assert not report.healthy and "failed" in str(report.checks["agent"].reason)
    finally:
        await box.destroy()
