"""Background processes against the real agent: followed, written to, left, found again and killed."""

from __future__ import annotations

import signal

import anyio
import pytest

from skerry import AsyncSandbox, CommandNotFound, ConnectionLost, Cut, ExecStatus, InvalidArgument, ProcessNotFound
from tests.sdk.agent_provider import AgentProvider
from tests.sdk.commands.conftest import NEEDS_AGENT, gone

pytestmark = NEEDS_AGENT


async def test_a_background_process_is_followed_and_its_end_known(box: AsyncSandbox) -> None:
    process = await box.processes.spawn("for i in 1 2 3; do echo $i; sleep 0.05; done; echo end >&2; exit 7")
    assert (await process.poll()).status is ExecStatus.RUNNING
    chunks = [chunk async for chunk in process]
    assert b"".join(chunk.data for chunk in chunks if chunk.stream == "stdout") == b"1\n2\n3\n"
    result = await process.wait()
    assert (result.exit_code, result.stdout, result.stderr) == (7, "1\n2\n3\n", "end\n")
    assert result is await process.wait()
    info = await process.poll()
    assert (info.status, info.exit_code, info.stdout_bytes) == (ExecStatus.EXITED, 7, 6)
    await process.kill()
    with pytest.raises(ProcessNotFound):
        await box.processes.kill(9999)
    assert [info.id for info in await box.processes.list()] == [process.id]
    with pytest.raises(ProcessNotFound):
        await box.processes.get(9999)


async def test_output_is_a_snapshot_that_goes_on_where_the_last_one_ended(box: AsyncSandbox) -> None:
    process = await box.processes.spawn("echo first; echo e >&2; read x; echo $x; read x", stdin=True)
    with anyio.fail_after(5):
        while len((await process.output()).stdout) < 6 or not (await process.output()).stderr:
            await anyio.sleep(0.01)
    one = await process.output()
    assert (one.stdout, one.stderr, one.gap, one.next) == (b"first\n", b"e\n", 0, (6, 2))
    await process.write_stdin("second\n")
    with anyio.fail_after(5):
        while not (two := await process.output(since=one.next)).stdout:
            await anyio.sleep(0.01)
    assert (two.stdout, two.stdout_offset, two.stderr) == (b"second\n", 6, b"")
    for wrong in (10**6, -1, (1,), "x"):
        with pytest.raises(InvalidArgument):
            await process.output(since=wrong)  # type: ignore[arg-type]
    await process.close_stdin()
    await process.close_stdin()
    assert (await process.wait()).exit_code == 1
    with pytest.raises(InvalidArgument):
        await process.write_stdin("more")


async def test_another_client_attaches_after_the_first_is_gone(agents: AgentProvider, box: AsyncSandbox) -> None:
    process = await box.processes.spawn("i=0; while [ $i -lt 20 ]; do echo line $i; i=$((i+1)); sleep 0.03; done")
    stream = process.attach()
    first = await anext(stream)
    await box.close()
    with pytest.raises(ConnectionLost):
        await stream.wait()
    other = await AsyncSandbox.connect(box.id, provider=agents)
    again = await other.processes.get(process.id)
    assert again.pid == process.pid
    async with again.attach(since=(len(first.data), 0)) as rest:
        data = first.data + b"".join([chunk.data async for chunk in rest])
        assert rest.gap == 0
    assert data.decode().splitlines() == [f"line {i}" for i in range(20)]
    await other.close()


async def test_a_process_nobody_follows_never_blocks_and_the_gap_is_known(box: AsyncSandbox) -> None:
    process = await box.processes.spawn("head -c 5000000 /dev/zero; echo done >&2")
    with anyio.fail_after(10):
        while (await process.poll()).status is ExecStatus.RUNNING:
            await anyio.sleep(0.02)
    output = await process.output()
    assert output.stderr == b"done\n"
    assert output.gap + len(output.stdout) == 5_000_000
    assert output.stdout_offset == output.gap > 0
    result = await process.wait()
    assert (result.exit_code, result.truncated, result.dropped_bytes) == (0, True, output.gap)
    assert result.stdout_cut == Cut(0, output.gap)
    assert result.stdout.startswith(f"[… {output.gap:,} bytes left out …]\0")


async def test_input_goes_on_while_the_output_is_followed(box: AsyncSandbox) -> None:
    process = await box.processes.spawn(["cat"], stdin=True)
    await process.write_stdin(b"one\n")
    got = b""
    async with process.attach() as stream:
        while got != b"one\n":
            got += (await anext(stream)).data
        await process.write_stdin(b"two\n")
        while got != b"one\ntwo\n":
            got += (await anext(stream)).data
    await process.write_stdin(b"three\n")
    await process.close_stdin()
    assert (await process.wait()).stdout == "one\ntwo\nthree\n"


async def test_two_tasks_write_one_after_the_other(box: AsyncSandbox) -> None:
    process = await box.processes.spawn("sleep 0.2; cat > out", stdin=True)  # so that both wait for credit
    async with anyio.create_task_group() as group:
        for letter in b"abc":
            group.start_soon(process.write_stdin, bytes([letter]) * 1_000_000)
    await process.close_stdin()
    assert (await process.wait()).exit_code == 0
    assert (await box.exec("fold -w 1000000 out | cut -c 1 | sort; wc -c < out")).stdout.split() == [*"abc", "3000000"]


async def test_two_tasks_that_write_first_share_the_attachment(box: AsyncSandbox) -> None:
    for _ in range(5):
        process = await box.processes.get((await box.processes.spawn(["cat"], stdin=True)).id)
        async with anyio.create_task_group() as group:
            for text in ("one", "two", "six"):
                group.start_soon(process.write_stdin, text)
        await process.close_stdin()
        assert len((await process.wait()).stdout) == 9


async def test_input_behind_the_end_of_the_input_is_refused(box: AsyncSandbox) -> None:
    process = await box.processes.spawn("sleep 0.2; wc -c", stdin=True)
    refused = []

    async def late() -> None:
        try:
            await process.write_stdin("late")
        except InvalidArgument:
            refused.append(1)

    async with anyio.create_task_group() as group:
        group.start_soon(process.write_stdin, bytes(1_000_000))
        group.start_soon(process.close_stdin)
        group.start_soon(late)
        group.start_soon(process.close_stdin)
    assert (refused, (await process.wait()).stdout) == ([1], "1000000\n")


async def test_input_behind_the_end_of_the_input_is_refused_as_such_though_the_process_has_ended(
    box: AsyncSandbox,
) -> None:
    process = await box.processes.spawn(["wc", "-c"], stdin=True)
    stream = await process._input()
    await process.close_stdin()
    with anyio.fail_after(20):
        while not stream.ended:
            await anyio.sleep(0.01)
    with pytest.raises(InvalidArgument, match="closed"):  # as a task that had waited for its turn to write
        await stream.send(b"late")
    assert await stream.send(b"", end=True)


async def test_writing_that_is_cut_off_is_not_taken_for_the_end_of_the_process(box: AsyncSandbox) -> None:
    process = await box.processes.spawn(["sleep", "600"], stdin=True)
    failed: list[Exception] = []

    async def write() -> None:
        try:
            await process.write_stdin(bytes(3_000_000))
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    for cut in ("attach", "close"):
        async with anyio.create_task_group() as group:
            group.start_soon(write)
            await anyio.sleep(0.1)
            if cut == "attach":
                await process.attach().aclose()
            else:
                await box.close()
    assert [type(error) for error in failed] == [ConnectionLost, ConnectionLost]
    await process.kill()


async def test_a_viewer_neither_takes_over_nor_sends(box: AsyncSandbox) -> None:
    process = await box.processes.spawn(["cat"], stdin=True)
    viewer = await box.processes.get(process.id, view=True)
    with pytest.raises(InvalidArgument):
        await viewer.write_stdin("x")
    async with viewer.attach() as stream:
        await process.write_stdin("hello\n")
        assert (await anext(stream)).data == b"hello\n"
    await process.close_stdin()
    assert (await viewer.wait()).stdout == "hello\n"


async def test_kill_reaches_the_whole_tree_and_other_signals_the_group(box: AsyncSandbox) -> None:
    process = await box.processes.spawn("setsid sleep 1000 & echo $!; wait")
    with anyio.fail_after(5):
        while not (output := (await process.output()).stdout):
            await anyio.sleep(0.01)
    await box.processes.kill(process.id)
    result = await process.wait()
    assert result.exit_code is None
    await gone(int(output))
    process = await box.processes.spawn("trap 'exit 9' USR1; while :; do sleep 0.05; done")
    await anyio.sleep(0.2)
    await process.kill(signal.SIGUSR1)
    assert (await process.wait()).exit_code == 9
    for wrong in (0, -1, 65, "TERM"):
        with pytest.raises(InvalidArgument):
            await process.kill(wrong)  # type: ignore[arg-type]


async def test_a_spawned_process_has_a_timeout(box: AsyncSandbox) -> None:
    process = await box.processes.spawn("sleep 1000", timeout=0.3)
    assert (await process.wait()).timed_out
    with pytest.raises(CommandNotFound):
        await box.processes.spawn(["no-such-program"])
