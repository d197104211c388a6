"""Commands, code and variables against the real agent, run as a plain process."""

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
    ExecStatus,
    ExecTimeout,
    FileMissing,
    InvalidArgument,
    OutputChunk,
    SandboxFailed,
    SandboxNotFound,
    Unsupported,
)
from tests.sdk.agent_provider import AgentProvider
from tests.sdk.commands.conftest import NEEDS_AGENT, alive, gone

pytestmark = NEEDS_AGENT


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


async def test_typescript_runs_where_node_takes_types_away(box: AsyncSandbox) -> None:
    code = "const answer: number = 6 * 7\nconsole.log(answer)"
    node = (await box.exec("node -p 'Boolean(process.features.typescript)'")).stdout
    if node == "true\n":
        assert (await box.code_run(code, language="typescript")).result == "42\n"
    else:
        with pytest.raises((Unsupported, CommandNotFound)) as refused:
            await box.code_run(code, language="ts")
        assert node == "" or "node-ts" in refused.value.hint


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
