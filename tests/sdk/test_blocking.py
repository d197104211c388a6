"""The blocking API: the same calls, from any thread, after a fork, and interrupted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from skerry import ExecStream, InvalidArgument, OutputChunk, Sandbox, SandboxNotFound, compute
from skerry.sdk.blocking import portal
from skerry.wire import Type, data_frame
from tests.sdk.agent_provider import AgentProvider
from tests.sdk.fake_agent import Connection, FakeProvider, started

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider()


def test_create_run_and_destroy(provider: FakeProvider) -> None:
    with Sandbox.create(provider, name="box") as sandbox:
        assert sandbox.exec("hello").stdout == "hello"
        assert sandbox.is_ready()
        assert sandbox.name == "box"
        assert [info.id for info in Sandbox.list(provider=provider)] == [sandbox.id]
        assert Sandbox.find("box", provider=provider).id == sandbox.id
    assert not provider.sandboxes
    with pytest.raises(SandboxNotFound):
        sandbox.exec("hello")


def test_compute_is_create(provider: FakeProvider) -> None:
    with compute(provider) as sandbox:
        assert sandbox.exec("x").ok


def test_streams_iterate_and_end(provider: FakeProvider) -> None:
    with Sandbox.create(provider) as sandbox:
        stream = sandbox.exec_stream("one\ntwo")
        assert isinstance(stream, ExecStream)
        assert list(stream) == [OutputChunk("stdout", b"one\ntwo", 0)]
        assert stream.wait().ok
        with sandbox.exec_stream("one\ntwo") as stream:
            assert list(stream.lines()) == ["one", "two"]
        with sandbox.exec_stream("one\ntwo") as stream:
            assert b"".join(stream.stdout) == b"one\ntwo"
        with pytest.raises(InvalidArgument):
            sandbox.exec_stream("")


def test_callbacks_run_in_another_thread_and_may_not_block_it(provider: FakeProvider) -> None:
    threads: list[str] = []
    errors: list[BaseException] = []
    with Sandbox.create(provider) as sandbox:

        def callback(text: str) -> None:
            threads.append(threading.current_thread().name)
            try:
                sandbox.exec("inside")
            except RuntimeError as error:
                errors.append(error)

        assert sandbox.exec("x", on_stdout=callback).ok
    assert threads == ["skerry-io"]
    assert "event loop" in str(errors[0])


def test_events_and_callbacks(provider: FakeProvider) -> None:
    seen: list[str] = []
    sandbox = Sandbox.create(provider, on_event=lambda event: seen.append(event.type))
    sandbox.on("ready", lambda event: seen.append("again"))
    events = iter(sandbox.events())
    assert [next(events).type for _ in range(2)] == ["created", "ready"]
    sandbox.destroy()
    assert [event.type for event in events] == ["destroyed"]
    assert sorted(seen) == ["again", "created", "destroyed", "ready"]


def test_many_threads_share_one_sandbox(provider: FakeProvider) -> None:
    results: list[str] = []
    with Sandbox.create(provider) as sandbox:

        def work(number: int) -> None:
            for i in range(20):
                assert sandbox.exec(["x", f"{number}-{i}"]).stdout == f"{number}-{i}"
            results.append("done")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len(results) == 10
    assert provider.dials == 1


def test_inside_another_event_loop_it_blocks_but_works(provider: FakeProvider) -> None:
    async def main() -> str:
        with Sandbox.create(provider) as sandbox:
            return sandbox.exec("inside").stdout

    assert asyncio.run(main()) == "inside"


def test_the_generated_file_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/gen_sync.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_forked_child_starts_its_own_loop(provider: FakeProvider) -> None:
    sandbox = Sandbox.create(provider)
    assert sandbox.exec("parent").ok
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, sandbox.exec("child").stdout_bytes)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as out:
        assert out.read() == b"child"
    os.waitpid(pid, 0)
    assert sandbox.exec("parent again").stdout == "parent again"
    assert provider.dials == 1, "the parent's connection is untouched"
    sandbox.close()


def test_ctrl_c_kills_the_command_before_it_goes_on(provider: FakeProvider) -> None:
    closed = threading.Event()

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1))
        os.kill(os.getpid(), signal.SIGINT)
        await connection.frame(Type.CLOSE)
        closed.set()
        await connection.frame()

    provider.script = script
    sandbox = Sandbox.create(provider)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sandbox.exec("sleep 100")
    assert time.monotonic() - began < 5
    assert closed.wait(2)
    sandbox.close()


def test_ctrl_c_inside_with_destroys(provider: FakeProvider) -> None:
    def work() -> None:
        with Sandbox.create(provider):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not provider.sandboxes


def test_a_stream_left_early_is_closed(provider: FakeProvider) -> None:
    closed = threading.Event()

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1), data_frame(1, 1, 0, b"first"))
        await connection.frame(Type.CLOSE)
        closed.set()
        await connection.frame()

    provider.script = script
    sandbox = Sandbox.create(provider)
    with sandbox.exec_stream("yes") as stream:
        for chunk in stream:
            assert chunk.data == b"first"
            break
    assert closed.wait(2)
    sandbox.close()


def test_a_program_that_ends_without_closing_ends_cleanly() -> None:
    script = textwrap.dedent(
        """
        from skerry import Sandbox
        from tests.sdk.fake_agent import FakeProvider
        sandbox = Sandbox.create(FakeProvider())
        print(sandbox.exec("bye").stdout)
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "bye\n", "")


def test_an_exception_keeps_its_type_and_cause(provider: FakeProvider) -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        portal.run(fail())


@pytest.mark.skipif(os.geteuid() != 0, reason="the agent changes users: run as root")
def test_wait_reads_on_where_an_iterator_was_left() -> None:
    with Sandbox.create(AgentProvider()) as sandbox, sandbox.exec_stream("head -c 3000000 /dev/zero") as stream:
        kept = stream.stdout
        next(kept)
        waiting = threading.Timer(20, stream.kill)
        waiting.start()
        result = stream.wait()
        waiting.cancel()
        assert (result.exit_code, len(result.stdout_bytes)) == (0, 3_000_000)
        with pytest.raises(InvalidArgument, match="wait"):
            next(kept)
