"""Sandboxes that are stopped, started, reset, recovered and frozen."""

from __future__ import annotations

import time

import anyio
import pytest

from skerry.core import (
    Conflict,
    InvalidArgument,
    ProcessNotFound,
    Provider,
    QuotaExceeded,
    SandboxNotFound,
    SandboxStopped,
    State,
    Stoppable,
    new_sandbox_id,
)
from skerry.sdk import AsyncSandbox
from skerry.testing.cases.base import Conformance, Fresh, until
from skerry.testing.cases.state.lifecycle import unique

COUNTER = "i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.02; done"


class StoppingConformance(Conformance):
    """stop, start, restart, reset, recover; a call on a stopped sandbox."""

    title = "stopping"
    needs = "stoppable"

    async def test_files_and_variables_outlive_a_stop_and_processes_do_not(self, fresh: Fresh) -> None:
        """What was written is there after a stop; what ran is not."""
        sandbox = await fresh(env={"A": "1"}, secrets={"KEY": "s3cret"})
        await sandbox.files.write("kept", b"data")
        await sandbox.env.set("B", "2")
        await sandbox.processes.spawn("sleep 600")
        assert (await sandbox.stop()).state is State.STOPPED
        assert (await sandbox.start()).state is State.RUNNING
        assert (await sandbox.exec("cat kept; echo $A$B$KEY")).stdout == "data12s3cret\n"
        assert await sandbox.processes.list() == []
        assert not (await sandbox.exec("pgrep -x sleep")).ok

    async def test_stopping_and_starting_twice_is_no_error(self, fresh: Fresh) -> None:
        """Stopping a stopped sandbox or starting a running one succeeds, whichever client was first."""
        sandbox = await fresh()
        for _ in range(2):
            assert (await sandbox.start()).state is State.RUNNING
        for _ in range(2):
            assert (await sandbox.stop()).state is State.STOPPED

    async def test_processes_are_asked_to_end_and_killed_after_the_time_given(self, fresh: Fresh) -> None:
        """A server gets its SIGTERM; one that ignores it does not hold up the stop."""
        sandbox = await fresh()
        await sandbox.processes.spawn("trap 'echo bye > polite; exit' TERM; echo > a; while :; do sleep 0.02; done")
        await sandbox.processes.spawn("trap '' TERM; echo > b; while :; do sleep 0.02; done")
        for name in ("a", "b"):
            await until(lambda name=name: sandbox.files.exists(name))  # type: ignore[misc]
        began = time.monotonic()
        await sandbox.stop(timeout=1)
        assert 0.9 < time.monotonic() - began < 20
        assert await sandbox.files.read("polite") == b"bye\n"

    async def test_a_call_starts_a_stopped_sandbox(self, fresh: Fresh, provider: Provider) -> None:
        """Work on a stopped sandbox starts it, from any client."""
        sandbox = await fresh()
        await sandbox.stop()
        assert (await sandbox.exec("echo on")).stdout == "on\n"
        await sandbox.stop()
        other = await AsyncSandbox.get(sandbox.id, provider=provider)
        await other.files.write("new", b"x")
        assert (await sandbox.info()).state is State.RUNNING
        await other.close()

    async def test_a_call_that_must_not_start_it_is_refused(self, fresh: Fresh, provider: Provider) -> None:
        """With auto_start=False a stopped sandbox stays so; asking after it never starts it."""
        sandbox = await fresh(auto_start=False)
        await sandbox.stop()
        with pytest.raises(SandboxStopped):
            await sandbox.exec("true")
        with pytest.raises(SandboxStopped):
            await AsyncSandbox.connect(sandbox.id, provider=provider, auto_start=False)
        assert not await sandbox.is_ready()
        assert not (await sandbox.health_check()).healthy
        assert (await sandbox.status()).usage is None
        with pytest.raises(SandboxStopped):
            await sandbox.usage()
        assert (await sandbox.wait_for_state("stopped")).state is State.STOPPED

    async def test_a_handle_of_a_process_that_is_gone_starts_nothing(self, fresh: Fresh) -> None:
        """Cleaning up after a stop must not undo it."""
        sandbox = await fresh()
        process = await sandbox.processes.spawn("sleep 600")
        await sandbox.stop()
        with pytest.raises((SandboxStopped, ProcessNotFound)):
            await process.kill()
        with pytest.raises((SandboxStopped, ProcessNotFound)):
            await process.wait()
        assert (await sandbox.info()).state is State.STOPPED

    async def test_a_stopped_sandbox_does_not_age(self, fresh: Fresh) -> None:
        """A lifetime counts while the sandbox runs, and starts again with each start."""
        sandbox = await fresh(timeout=4)
        info = await sandbox.stop()
        assert info.expires_at is None
        await anyio.sleep(4.5)
        assert (await sandbox.info()).state is State.STOPPED
        info = await sandbox.start()
        assert info.expires_at is not None
        assert 2 < info.expires_at - time.time() <= 4.1

    async def test_at_its_timeout_it_is_stopped_where_that_was_asked(self, fresh: Fresh, provider: Provider) -> None:
        """Files and variables are there, what ran is not; the next call starts it for another `timeout`."""
        sandbox = await fresh(timeout=3, on_timeout="stop")
        await sandbox.files.write("kept", b"data")
        await sandbox.env.set("B", "2")
        await sandbox.processes.spawn("sleep 600")
        info = await sandbox.wait_for_state("stopped", timeout=30)
        assert (info.expires_at, info.on_timeout) == (None, "stop")
        assert info.reason is not None
        stopped = [event for event in await provider.events(sandbox.id) if event.type == "stopped"]
        assert [event.data for event in stopped] == [{"reason": "timeout"}]
        await sandbox.start()
        info = await sandbox.set_timeout(60)
        assert info.expires_at is not None
        assert (await sandbox.exec("cat kept; echo $B")).stdout == "data2\n"
        assert await sandbox.processes.list() == []

    async def test_at_its_timeout_one_with_a_name_is_stopped_and_one_without_is_destroyed(
        self, fresh: Fresh, provider: Provider
    ) -> None:
        """A user who names a sandbox wants to find it again; one without a name must not stay."""
        named, unnamed = await fresh(name=unique("timeout"), timeout=2), await fresh(timeout=2)
        asked = await fresh(name=unique("timeout"), timeout=2, on_timeout="destroy")
        boxes = (named, unnamed, asked)
        assert [(await box.info()).on_timeout for box in boxes] == ["stop", "destroy", "destroy"]
        await named.wait_for_state("stopped", timeout=30)
        for box in (unnamed, asked):
            await box.wait_for_state("destroyed", timeout=30)
        assert named.id not in await provider.sweep()
        assert (await named.info()).state is State.STOPPED

    async def test_whoever_uses_it_during_a_stop_gets_an_error_and_no_hang(self, fresh: Fresh) -> None:
        """A command that was running has ended in a way that cannot be known."""
        sandbox = await fresh()
        caught: list[BaseException] = []

        async def work() -> None:
            try:
                await sandbox.exec("echo > ready; trap '' TERM; while :; do sleep 0.1; done")
            except SandboxStopped as error:
                caught.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await until(lambda: sandbox.files.exists("ready"))
            await sandbox.stop(timeout=0)
        assert len(caught) == 1

    async def test_a_restart_changes_what_it_is_told_to(self, fresh: Fresh) -> None:
        """Variables go over those there are, limits over limits; the rest stays."""
        sandbox = await fresh(env={"A": "1"})
        await sandbox.files.write("kept", b"data")
        await sandbox.env.set("B", "2")
        info = await sandbox.restart(env={"B": "3"}, resources={"memory": 500_000_000})
        assert info.resources.memory == 500_000_000
        assert (await sandbox.exec("echo $A$B; cat kept")).stdout == "13\ndata"

    async def test_a_restart_that_cannot_be_honoured_stops_nothing(self, fresh: Fresh) -> None:
        """A restart that is refused is refused before the sandbox stops."""
        sandbox = await fresh(secrets={"KEY": "x"})
        process = await sandbox.processes.spawn("sleep 600")
        with pytest.raises(QuotaExceeded):
            await sandbox.restart(resources={"memory": 10**15})
        with pytest.raises(InvalidArgument):
            await sandbox.restart(env={"KEY": "y"})
        with pytest.raises(InvalidArgument):
            await sandbox.restart(timeout=-1)
        assert (await process.poll()).status == "running"

    async def test_a_reset_leaves_files_but_no_process_and_no_variable(self, fresh: Fresh) -> None:
        """A reset sandbox is as at its creation, except for the files that were written."""
        sandbox = await fresh(env={"A": "1"})
        await sandbox.files.write("kept", b"data")
        await sandbox.env.set("A", "2")
        await sandbox.processes.spawn("sleep 600")
        assert (await sandbox.reset()).state is State.RUNNING
        assert (await sandbox.exec("echo $A; cat kept")).stdout == "1\ndata"
        assert not (await sandbox.exec("pgrep -x sleep")).ok

    async def test_a_hard_reset_leaves_nothing(self, fresh: Fresh) -> None:
        """No file that was written, changed or removed stays so."""
        sandbox = await fresh()
        before = (await sandbox.exec("ls -la --time-style=+ /workspace /home/user /etc")).stdout
        await sandbox.exec("echo x > f; rm /etc/hosts; chmod 700 /home/user; touch ~/g", user="root")
        assert (await sandbox.reset(hard=True)).state is State.RUNNING
        assert (await sandbox.exec("ls -la --time-style=+ /workspace /home/user /etc")).stdout == before

    async def test_one_that_has_not_failed_is_not_recovered(self, fresh: Fresh) -> None:
        """An operation in a state that does not allow it is a conflict."""
        sandbox = await fresh()
        with pytest.raises(Conflict):
            await sandbox.recover()
        await sandbox.stop()
        with pytest.raises(Conflict):
            await sandbox.recover()

    async def test_a_graceful_destroy_asks_and_keeps_its_time(self, fresh: Fresh, provider: Provider) -> None:
        """The sandbox is gone after the time given, whatever its processes do."""
        sandbox = await fresh()
        await sandbox.processes.spawn("trap '' TERM; echo > ready; while :; do sleep 0.02; done")
        await until(lambda: sandbox.files.exists("ready"))
        began = time.monotonic()
        await sandbox.destroy(graceful=True, timeout=1)
        assert 0.9 < time.monotonic() - began < 20
        with pytest.raises(SandboxNotFound):
            await provider.get(sandbox.id)

    async def test_inactivity_stops_it_and_work_does_not(self, fresh: Fresh, provider: Provider) -> None:
        """Inactivity is measured by work in the sandbox; looking at it is not work."""
        busy, quiet = await fresh(auto_stop=1), await fresh(auto_stop=1, env={"A": "1"})
        await quiet.env.set("B", "2")
        async with anyio.create_task_group() as group:
            group.start_soon(busy.exec, "sleep 3")
            info = await quiet.wait_for_state("stopped", timeout=30)
            assert (await busy.info()).state is State.RUNNING
        assert info.reason
        assert (await quiet.exec("echo $A$B")).stdout == "12\n"

    async def test_each_transition_is_an_event(self, fresh: Fresh, provider: Provider) -> None:
        """A client that reads the events knows what has happened to the sandbox."""
        sandbox = await fresh()
        await sandbox.stop()
        await sandbox.start()
        await sandbox.restart()
        await sandbox.reset()
        types = [event.type for event in await provider.events(sandbox.id)]
        assert types[2:] == ["stopped", "started", "stopped", "started", "reset"]

    async def test_nobody_is_not_found(self, provider: Provider) -> None:
        """An unknown sandbox is neither stopped nor started."""
        assert isinstance(provider, Stoppable)
        with pytest.raises(SandboxNotFound):
            await provider.stop(new_sandbox_id(), grace=0)
        with pytest.raises(SandboxNotFound):
            await provider.start(new_sandbox_id())


class PausingConformance(Conformance):
    """pause and resume."""

    title = "pausing"
    needs = "pausable"

    async def test_processes_stand_still_and_go_on(self, fresh: Fresh) -> None:
        """They are frozen in memory, with all they have."""
        sandbox = await fresh()
        process = await sandbox.processes.spawn(COUNTER)
        await until(lambda: sandbox.files.exists("count"))
        assert (await sandbox.pause()).state is State.PAUSED
        assert (await sandbox.pause()).state is State.PAUSED
        await anyio.sleep(1)
        assert (await sandbox.resume()).state is State.RUNNING
        assert (await sandbox.resume()).state is State.RUNNING
        assert (await process.poll()).status == "running"
        first = int(await sandbox.files.read("count"))

        async def further() -> bool:
            return int(await sandbox.files.read("count") or b"0") > first + 5

        await until(further)

    async def test_a_command_that_was_running_goes_on(self, fresh: Fresh) -> None:
        """The command's client waits for it and gets all of its output."""
        sandbox = await fresh()
        results: list[str] = []

        async def work() -> None:
            results.append((await sandbox.exec("echo > ready; sleep 1; echo done")).stdout)

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await until(lambda: sandbox.files.exists("ready"))
            await sandbox.pause()
            await anyio.sleep(2)
            assert results == []
            await sandbox.resume()
        assert results == ["done\n"]

    async def test_a_call_resumes_it_unless_that_is_not_wanted(self, fresh: Fresh, provider: Provider) -> None:
        """A call resumes a paused sandbox as it starts a stopped one."""
        sandbox = await fresh()
        await sandbox.pause()
        with pytest.raises(SandboxStopped):
            await AsyncSandbox.connect(sandbox.id, provider=provider, auto_start=False)
        assert not await sandbox.is_ready()
        assert (await sandbox.exec("echo woken")).stdout == "woken\n"
        await sandbox.pause()
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        assert (await other.info()).state is State.RUNNING
        assert (await sandbox.exec("echo also here")).stdout == "also here\n"
        await other.close()

    async def test_one_that_does_not_run_is_not_paused(self, fresh: Fresh) -> None:
        """A conflict, and it stays as it is."""
        sandbox = await fresh()
        await sandbox.stop()
        with pytest.raises(Conflict):
            await sandbox.pause()
        with pytest.raises(Conflict):
            await sandbox.resume()

    async def test_a_paused_one_is_destroyed_at_once(self, fresh: Fresh, provider: Provider) -> None:
        """A paused sandbox can be destroyed, too."""
        sandbox = await fresh()
        await sandbox.processes.spawn("sleep 600")
        await sandbox.pause()
        began = time.monotonic()
        await sandbox.destroy()
        assert time.monotonic() - began < 20
        with pytest.raises(SandboxNotFound):
            await provider.get(sandbox.id)
