"""Commands and processes against the real agent, run as a plain process."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator

import anyio
import pytest

from skerry import (
    AsyncSandbox,
    CommandFailed,
    CommandNotFound,
    ConnectionLost,
    Cut,
    ExecStatus,
    ExecTimeout,
    FileMissing,
    InvalidArgument,
    OutputChunk,
    ProcessNotFound,
    SandboxFailed,
    SandboxNotFound,
)
from tests.sdk.agent_provider import AGENT, AgentProvider

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the agent changes users: run as root"),
    pytest.mark.skipif(not AGENT.exists(), reason="the agent is not built: make -C agent"),
]


@pytest.fixture
async def agents() -> AsyncIterator[AgentProvider]:
    provider = AgentProvider()
    yield provider
    for sandbox_id in list(provider.boxes):
        await provider.destroy(sandbox_id)


@pytest.fixture
async def box(agents: AgentProvider) -> AsyncIterator[AsyncSandbox]:
    sandbox = await AsyncSandbox.create(agents, env={"GREETING": "hello"})
    with anyio.fail_after(90):
        yield sandbox
    await sandbox.destroy()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    with anyio.fail_after(5):
        while alive(pid):
            await anyio.sleep(0.01)


async def test_a_string_goes_to_the_shell_and_a_list_does_not(box: AsyncSandbox) -> None:
    result = await box.exec("echo $GREETING; echo oops >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "hello\n", "oops\n")
    assert (result.status, result.ok, result.truncated) == (ExecStatus.EXITED, False, False)
    assert result.pid > 0
    assert result.duration > 0
    assert (await box.exec(["echo", "$GREETING; x"])).stdout == "$GREETING; x\n"


async def test_options_reach_the_command(box: AsyncSandbox) -> None:
    result = await box.exec("pwd; echo $A $GREETING; id -un", cwd="/usr", env={"A": "1", "GREETING": "bye"})
    assert result.stdout == "/usr\n1 bye\nroot\n"
    assert (await box.exec("id -un", user="nobody")).stdout == "nobody\n"
    assert (await box.exec("id -un", sudo=True)).stdout == "root\n"
    odd = b"\xff\xfe\n\t ".decode("utf-8", "surrogateescape")
    assert (await box.exec('printf %s "$ODD"', env={"ODD": odd})).stdout_bytes == b"\xff\xfe\n\t "


async def test_a_missing_program_is_an_error_in_a_list_and_127_in_the_shell(box: AsyncSandbox) -> None:
    with pytest.raises(CommandNotFound):
        await box.exec(["no-such-program"])
    assert (await box.exec("no-such-program")).exit_code == 127
    with pytest.raises(FileMissing):
        await box.exec("true", cwd="/no/such/directory")


async def test_check_raises_with_the_result(box: AsyncSandbox) -> None:
    with pytest.raises(CommandFailed, match="because") as failed:
        await box.exec("echo because >&2; exit 4", check=True)
    assert failed.value.result.exit_code == 4
    assert (await box.exec("true", check=True)).ok


async def test_a_timeout_keeps_the_output_and_kills_grandchildren(box: AsyncSandbox) -> None:
    began = time.monotonic()
    result = await box.exec("(setsid sleep 1000 & echo $!); trap '' TERM; sleep 1000", timeout=2)
    assert time.monotonic() - began < 20
    assert (result.status, result.exit_code, result.timed_out) == (ExecStatus.TIMED_OUT, None, True)
    await gone(int(result.stdout))
    with pytest.raises(ExecTimeout) as timed_out:
        await box.exec("echo so far; sleep 100", timeout=1.5, check=True)
    assert timed_out.value.result.stdout == "so far\n"


async def test_a_signal_is_no_exit_code(box: AsyncSandbox) -> None:
    result = await box.exec("kill -SEGV $$")
    assert (result.status, result.exit_code, result.signal) == (ExecStatus.SIGNALED, None, signal.SIGSEGV)


async def test_cancelling_kills_the_tree_and_returns_at_once(box: AsyncSandbox) -> None:
    pids: list[int] = []

    def cancel(text: str) -> None:
        pids.append(int(text))
        scope.cancel()

    with anyio.fail_after(20), anyio.CancelScope() as scope:
        await box.exec("echo $$; sleep 1000", on_stdout=cancel)
    assert scope.cancelled_caught
    await gone(pids[0])
    assert (await box.exec("echo fine")).stdout == "fine\n"


async def test_a_background_child_does_not_hold_exec(box: AsyncSandbox) -> None:
    began = time.monotonic()
    result = await box.exec("sleep 60 & echo $!")
    assert time.monotonic() - began < 30
    assert alive(int(result.stdout))
    os.kill(int(result.stdout), signal.SIGKILL)


async def test_callbacks_get_whole_characters_in_order(box: AsyncSandbox) -> None:
    out: list[str] = []
    err: list[str] = []

    async def on_stderr(text: str) -> None:
        await anyio.sleep(0)
        err.append(text)

    script = r"printf '\303'; sleep 0.1; printf '\244b\377'; printf '\342\202' >&2; sleep 0.1; printf '\254' >&2"
    result = await box.exec(script, on_stdout=out.append, on_stderr=on_stderr)
    assert "".join(out) == "äb�" == result.stdout
    assert "".join(err) == "€" == result.stderr


@pytest.mark.parametrize("kind", ["bytes", "list", "generator", "async"])
async def test_a_hundred_megabytes_of_input(kind: str, box: AsyncSandbox) -> None:
    block = os.urandom(1 << 20)
    count = 100 if kind == "bytes" else 20

    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield block

    stdin = {
        "bytes": block * count,
        "list": [block] * count,
        "generator": (block for _ in range(count)),
        "async": slowly(),
    }[kind]
    result = await box.exec("wc -c; ", stdin=stdin)
    assert int(result.stdout) == count << 20


async def test_input_that_comes_back_is_the_same(box: AsyncSandbox) -> None:
    data = os.urandom(3_000_001)
    assert (await box.exec("cat", stdin=data)).stdout_bytes == data
    assert (await box.exec("cat", stdin="äöü")).stdout == "äöü"
    assert (await box.exec("cat", stdin=b"")).stdout == ""
    assert (await box.exec("cat")).stdout == ""


async def test_a_command_that_ignores_its_input_ends(box: AsyncSandbox) -> None:
    assert (await box.exec("exec 0<&-; sleep 0.2; echo done", stdin=bytes(5_000_000))).stdout == "done\n"


async def test_two_hundred_megabytes_of_output_in_flat_memory(box: AsyncSandbox) -> None:
    await box.exec("head -c 20000000 /dev/zero")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 0
    async with box.exec_stream("head -c 200000000 /dev/zero", output_limit=1000) as stream:
        async for chunk in stream:
            assert chunk.offset == size
            size += len(chunk.data)
        result = await stream.wait()
    assert size == 200_000_000
    assert (result.dropped_bytes, result.truncated, len(result.stdout_bytes)) == (size - 1000, True, 1000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000, "kilobytes"


async def test_head_and_tail_of_large_output_are_kept(box: AsyncSandbox) -> None:
    result = await box.exec("seq 1 1000000; echo the reason >&2", output_limit=1000)
    assert result.stdout.startswith("1\n2\n3\n")
    assert result.stdout.endswith("999999\n1000000\n")
    assert result.stderr == "the reason\n"
    assert len(result.stdout_bytes) == 1000
    assert result.dropped_bytes == len("".join(f"{i}\n" for i in range(1, 1000001))) - 1000


async def test_a_command_line_of_100_kilobytes(box: AsyncSandbox) -> None:
    assert (await box.exec(["echo", "x" * 100_000])).stdout_bytes == b"x" * 100_000 + b"\n"


async def test_a_hundred_at_once(box: AsyncSandbox) -> None:
    results: list[str] = []

    async def run(number: int) -> None:
        results.append((await box.exec(f"echo {number}")).stdout)

    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(run, number)
    assert sorted(int(text) for text in results) == list(range(100))


async def test_exec_stream_gives_chunks_lines_and_bytes(box: AsyncSandbox) -> None:
    async with box.exec_stream("echo one; sleep 0.1; echo two >&2; sleep 0.1; printf three; exit 5") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.wait()
    assert chunks == [
        OutputChunk("stdout", b"one\n", 0),
        OutputChunk("stderr", b"two\n", 0),
        OutputChunk("stdout", b"three", 4),
    ]
    assert (result.exit_code, result.stdout, result.stderr) == (5, "one\nthree", "two\n")
    async with box.exec_stream(r"printf 'a\303'; sleep 0.1; printf '\244\nb'") as stream:
        assert [line async for line in stream.lines()] == ["aä", "b"]


async def test_one_stream_may_be_read_while_the_other_overflows(box: AsyncSandbox) -> None:
    async with box.exec_stream("head -c 5000000 /dev/zero >&2; echo done", output_limit=1000) as stream:
        assert b"".join([data async for data in stream.stdout]) == b"done\n"
        result = await stream.wait()
    assert len(result.stderr_bytes) == 1000
    assert result.dropped_bytes == 5_000_000 - 1000


async def test_both_streams_may_be_read_at_once_without_loss(box: AsyncSandbox) -> None:
    sizes = {"out": 0, "err": 0}
    script = "head -c 3000000 /dev/zero & head -c 2000000 /dev/zero >&2; wait"
    async with box.exec_stream(script) as stream, anyio.create_task_group() as group:

        async def count(name: str, parts: AsyncIterator[bytes], delay: float) -> None:
            async for data in parts:
                sizes[name] += len(data)
                await anyio.sleep(delay)

        group.start_soon(count, "out", stream.stdout, 0)
        group.start_soon(count, "err", stream.stderr, 0.002)
    assert sizes == {"out": 3_000_000, "err": 2_000_000}


async def test_a_slow_reader_holds_the_command_back(box: AsyncSandbox) -> None:
    async with box.exec_stream("yes | head -c 100000000") as stream:
        first = await anext(stream)
        await anyio.sleep(0.5)
        (info,) = [info for info in await box.processes.list() if info.pid == stream.pid]
        assert info.stdout_bytes < 2_000_000
        assert first.data.startswith(b"y\n")


async def test_wait_reads_on_where_an_iterator_was_left(box: AsyncSandbox) -> None:
    stream = box.exec_stream("head -c 3000000 /dev/zero; echo err >&2; exit 4")
    async with stream:
        kept = stream.stdout
        first = await anext(kept)
        with anyio.fail_after(20):
            result = await stream.wait()
        assert (result.exit_code, len(result.stdout_bytes), result.stderr) == (4, 3_000_000, "err\n")
        assert 0 < len(first) < 3_000_000
        with pytest.raises(InvalidArgument, match="wait"):  # not an end, as if that had been all
            await anext(kept)


async def test_an_iterator_that_has_it_all_ends_after_wait(box: AsyncSandbox) -> None:
    async with box.exec_stream("echo all; sleep 0.2") as stream:
        kept = stream.stdout
        assert await anext(kept) == b"all\n"
        await stream.wait()
        assert [data async for data in kept] == []


async def test_what_a_closed_iterator_had_not_taken_holds_nothing_back(box: AsyncSandbox) -> None:
    async with box.exec_stream("head -c 3000000 /dev/zero; echo err >&2") as stream:
        kept = stream.stdout
        await anext(kept)
        with anyio.move_on_after(0.5):  # fills up what waits for the first one
            await anext(stream.stderr)
        assert isinstance(kept, AsyncGenerator)
        await kept.aclose()
        with anyio.fail_after(20):
            assert len((await stream.wait()).stdout_bytes) == 3_000_000


async def test_wait_leaves_the_iterator_of_another_task_alone(box: AsyncSandbox) -> None:
    async with box.exec_stream("head -c 3000000 /dev/zero") as stream:
        got = 0

        async def slowly() -> None:
            nonlocal got
            async for data in stream.stdout:
                got += len(data)
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as group:
            group.start_soon(slowly)
            await anyio.sleep(0.02)
            await stream.wait()
    assert got == 3_000_000


async def test_leaving_a_stream_early_kills_and_an_unfinished_kill_reports_a_signal(box: AsyncSandbox) -> None:
    async with box.exec_stream("echo $$; exec sleep 1000") as stream:
        pid = int((await anext(stream)).data)
        assert alive(pid)
    await gone(pid)
    async with box.exec_stream("echo $$; exec sleep 1000") as stream:
        await anext(stream)
        await stream.kill(signal.SIGTERM)
        assert (await stream.wait()).signal == signal.SIGTERM
        await stream.kill()
    async with box.exec_stream("echo $$; sleep 1000 & wait") as stream:
        await anext(stream)
        await stream.kill()
        assert (await stream.wait()).exit_code is None


async def test_a_forgotten_stream_is_killed(box: AsyncSandbox) -> None:
    stream = box.exec_stream("echo $$; exec sleep 1000")
    pid = int((await anext(stream)).data)
    del stream
    await gone(pid)


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


async def test_environment(box: AsyncSandbox) -> None:
    await box.env.set("A", "1 2\n3")
    await box.env.set({"B": "ü", "C": "\udcff"})
    assert await box.env.get("A") == "1 2\n3"
    assert await box.env.get("NOPE") is None
    assert (await box.exec('printf %s "$A$B$C"')).stdout_bytes == b"1 2\n3\xc3\xbc\xff"
    await box.env.unset("A", "NOPE")
    everything = await box.env.all()
    assert "A" not in everything
    assert everything["B"] == "ü"
    assert everything["C"] == "\udcff"
    assert everything["GREETING"] == "hello"
    for call in (
        box.env.set("", "x"),
        box.env.set("A=B", "x"),
        box.env.set("A", "\0"),
        box.env.set("A"),
        box.env.get(""),
    ):
        with pytest.raises(InvalidArgument):
            await call


async def test_code(box: AsyncSandbox) -> None:
    code = await box.code_run("import sys\nprint(6 * 7)\nprint('e', file=sys.stderr)\nsys.exit(3)")
    assert (code.result, code.exit_code, code.stderr) == ("42\n", 3, "e\n")
    shell = await box.code_run("cat\necho after\n", language="sh")
    assert (shell.result, shell.exit_code) == ("after\n", 0)
    long = "echo x\n" * 50_000
    assert len((await box.code_run(long, language="bash")).result) == 100_000
    with pytest.raises(ExecTimeout):
        await box.code_run("while True: pass", timeout=0.3, check=True)
    with pytest.raises(CommandNotFound):
        await box.code_run("1", env={"PATH": "/nowhere"})


async def test_with_ends_the_sandbox_with_its_connection(agents: AgentProvider) -> None:
    sandbox = await AsyncSandbox.create(agents)
    process = agents.boxes[sandbox.id].process
    await sandbox.__aenter__()
    await sandbox.close()
    with anyio.fail_after(5):
        while process.poll() is None:
            await anyio.sleep(0.01)
    with pytest.raises(SandboxNotFound):
        await sandbox.exec("true")


async def test_an_agent_that_dies_in_the_middle_is_a_failed_sandbox(agents: AgentProvider) -> None:
    sandbox = await AsyncSandbox.create(agents)
    await sandbox.exec("true")

    async def kill() -> None:
        await anyio.sleep(0.3)
        agents.boxes[sandbox.id].process.kill()
        agents.boxes[sandbox.id].process.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(kill)
        with pytest.raises(SandboxFailed) as failed:
            await sandbox.exec("sleep 5")
    assert isinstance(failed.value.__cause__, ConnectionLost)
    with pytest.raises(SandboxFailed):
        await sandbox.exec("true")


async def test_set_timeout_ends_it(agents: AgentProvider) -> None:
    sandbox = await AsyncSandbox.create(agents)
    info = await sandbox.set_timeout(0.5)
    assert info.expires_at is not None
    assert info.expires_at < time.time() + 1

    async def use() -> None:
        while True:
            await sandbox.exec("true")
            await anyio.sleep(0.05)

    with anyio.fail_after(5), pytest.raises(SandboxNotFound):
        await use()


async def test_usage_has_disk_and_network_from_inside(box: AsyncSandbox) -> None:
    usage = await box.usage()
    assert usage.disk_total is not None
    assert usage.disk_used is not None
    assert 0 < usage.disk_used < usage.disk_total
    assert (await box.status()).usage is not None
