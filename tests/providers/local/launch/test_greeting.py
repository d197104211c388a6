"""How the launcher and the engine's own calls take an agent's greeting, whole, cut or hostile."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.core import ConnectionLost, Corrupted, SandboxFailed
from skerry.providers.local.launch import agent_call
from skerry.providers.local.launch.launch import Layout, _await_hello
from skerry.wire import FINAL, Env, EnvReply, Failure, Hello, Type, encode_frame

HELLO = Hello(generation=2, version="1.2.3")
GREETING = encode_frame(0, Type.HELLO, HELLO.encode())
REFUSED = encode_frame(0, Type.ERROR, Failure(code="UNAUTHENTICATED", message="wrong token").encode())
ANSWER = encode_frame(1, Type.REPLY, EnvReply(env=(b"A=b",)).encode(), FINAL)
MALFORMED = {
    "no fields": encode_frame(0, Type.HELLO),
    "too large": b"\xff" * 12,
    "no HELLO": encode_frame(1, Type.REPLY),
}


@pytest.fixture
def launcher() -> Iterator[int]:
    """A process that runs on, as a launcher does that is still at work."""
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process.pid
        process.kill()


def await_hello(launcher: int, directory: Path, *pieces: bytes) -> Hello:
    ours, agent = socket.socketpair()
    with ours, agent:

        def say() -> None:
            for piece in pieces:
                agent.sendall(piece)

        speaker = threading.Thread(target=say)
        speaker.start()
        try:
            return _await_hello(ours, launcher, Layout(directory=directory))
        finally:
            speaker.join()


def test_the_launcher_takes_a_greeting_in_pieces(launcher: int, tmp_path: Path) -> None:
    assert await_hello(launcher, tmp_path, GREETING) == HELLO
    assert await_hello(launcher, tmp_path, *(GREETING[at : at + 1] for at in range(len(GREETING)))) == HELLO


@pytest.mark.parametrize("what", MALFORMED)
def test_a_sandbox_whose_agent_greets_badly_has_failed(what: str, launcher: int, tmp_path: Path) -> None:
    with pytest.raises(SandboxFailed, match="agent"):
        await_hello(launcher, tmp_path, MALFORMED[what])


def test_a_launcher_that_ends_is_noticed_in_the_middle_of_a_greeting(tmp_path: Path) -> None:
    (tmp_path / "launch.log").write_text("no such layer\n")
    ended = os.posix_spawn("/bin/false", ["/bin/false"], {})
    try:
        with pytest.raises(SandboxFailed, match="no such layer"):
            await_hello(ended, tmp_path, GREETING[:5])
    finally:
        os.waitpid(ended, 0)


def ask(path: Path, *pieces: bytes) -> EnvReply:
    """Ask an agent at `path` that says `pieces`, each in a packet, and then nothing more."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def say() -> None:
            agent, _ = listener.accept()
            with agent:
                agent.recv(65536)
                for piece in pieces:
                    agent.sendall(piece)

        speaker = threading.Thread(target=say)
        speaker.start()
        try:
            return agent_call.request(path, b"token", Env(), EnvReply, timeout=10)
        finally:
            speaker.join()


@pytest.mark.parametrize(
    "pieces", [(GREETING + ANSWER,), (GREETING, ANSWER), (GREETING[:5], GREETING[5:] + ANSWER[:9], ANSWER[9:])]
)
def test_an_answer_comes_behind_the_greeting_however_they_are_cut(pieces: tuple[bytes, ...], tmp_path: Path) -> None:
    assert ask(tmp_path / "agent.sock", *pieces) == EnvReply(env=(b"A=b",))


@pytest.mark.parametrize("what", MALFORMED)
def test_a_bad_greeting_is_no_answer(what: str, tmp_path: Path) -> None:
    with pytest.raises(Corrupted):
        ask(tmp_path / "agent.sock", MALFORMED[what] + ANSWER)


def test_a_refused_token_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost, match="wrong token"):
        ask(tmp_path / "agent.sock", REFUSED)
