"""This process's terminal as the screen and keyboard of a terminal in a sandbox."""

from __future__ import annotations

import os
import signal
import stat
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from skerry.cli.terminal.stdio import CHUNK, OUT_OF_MEMORY, write
from skerry.core import Conflict, ConnectionLost, ExecStatus, InvalidArgument, ProcessNotFound, TerminalExit

if TYPE_CHECKING:
    from skerry import AsyncTerminal, AsyncTerminalStream

END_OF_INPUT = b"\x04"
# Modes that a program may leave on at a detach: other screen, mouse, pasting, hidden cursor, colours.
PLAIN = b"\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m\r\n"


def local_size() -> tuple[int, int]:
    """Columns and rows of this process's terminal; 80 × 24 without one."""
    for fd in (0, 1, 2):
        try:
            size = os.get_terminal_size(fd)
        except OSError:
            continue
        if size.columns and size.lines:
            return size.columns, size.lines
    return 80, 24


def parse_keys(text: str) -> bytes:
    """The bytes of keys written like ctrl-p,ctrl-q. Raises InvalidArgument."""
    keys = b""
    for name in text.split(",") if text else ():
        letter = name.lower().removeprefix("ctrl-")
        if len(name) == 1 and name.isascii() and name.isprintable():
            keys += name.encode()
        elif len(letter) == 1 and letter in "abcdefghijklmnopqrstuvwxyz@[\\]^_" and name != letter:
            keys += bytes([ord(letter.upper()) & 0x1F])
        else:
            raise InvalidArgument(f"--detach-keys {text!r} has no keys", hint="write them like ctrl-a,d")
    return keys


class KeyFilter:
    """Passes on what is typed and finds the detach keys in it; holds a beginning of them until it is decided."""

    def __init__(self, keys: bytes) -> None:
        self._keys, self._held = keys, b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """What to type, and whether the keys are complete."""
        if not self._keys:
            return data, False
        typed = bytearray()
        for byte in data:
            self._held += bytes([byte])
            while not self._keys.startswith(self._held):
                typed += self._held[:1]
                self._held = self._held[1:]
            if self._held == self._keys:
                return bytes(typed), True
        return bytes(typed), False


@contextmanager
def raw_mode() -> Iterator[None]:
    """Passes every key to the sandbox inside the block; does nothing if stdin is not a terminal."""
    if not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # keeps what was typed ahead
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


async def converse(terminal: AsyncTerminal, *, keys: bytes, since: int, view: bool) -> int | None:
    """Show the terminal and type into it until it ends: its exit code. None: detached by the keys.

    Raises ProcessNotFound, ConnectionLost, and what the sandbox's end raises.
    """
    detached = False

    async def type_keys(stream: AsyncTerminalStream, scope: anyio.CancelScope) -> None:
        nonlocal detached
        if await _type(stream, KeyFilter(keys if os.isatty(0) else b""), view=view):
            detached = True
            scope.cancel()

    async with terminal.attach(since=since) as stream:
        if not view and os.isatty(0):
            await _fit(terminal)
        with raw_mode():
            async with anyio.create_task_group() as group:
                group.start_soon(type_keys, stream, group.cancel_scope)
                group.start_soon(_tell, stream)
                if not view and os.isatty(0):
                    group.start_soon(_follow_size, terminal)
                await _show(stream, cut=since > 0)
                group.cancel_scope.cancel()
            if detached and os.isatty(1):
                await write(1, PLAIN)
    return None if detached or stream.exit is None else _exit_code(stream.exit)


async def _show(stream: AsyncTerminalStream, *, cut: bool) -> None:
    """With `cut`, begin after a newline, since the middle of a line may be the middle of an escape sequence."""
    async for chunk in stream:
        data = chunk.data
        if cut:
            data = data[data.find(b"\n") + 1 :]
            cut = False
        await write(1, data)


async def _type(stream: AsyncTerminalStream, keys: KeyFilter, *, view: bool) -> bool:
    """True when the detach keys were typed."""
    mode = os.fstat(0).st_mode
    waits = os.isatty(0) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)  # a file is always ready
    last = b"\n"
    while True:
        if waits:
            await anyio.wait_readable(0)
        data = os.read(0, CHUNK)
        if not data and os.isatty(0):
            return False
        # In the middle of a line, the first Ctrl-D only hands over the line.
        typed, found = keys.feed(data) if data else (END_OF_INPUT * (1 if last == b"\n" else 2), False)
        last = data[-1:]
        if typed and not view:
            try:
                await stream.write(typed)
            except (Conflict, ConnectionLost, ProcessNotFound):
                pass  # reported by _tell, or where the output is read
        if found or not data:
            return found


async def _tell(stream: AsyncTerminalStream) -> None:
    had_control = stream.controls
    while had_control:
        await stream.changed()
        if not stream.controls:
            await write(2, b"\r\n[another client has taken over; you can only watch]\r\n")
            return
        if stream.exit is not None:
            return


async def _follow_size(terminal: AsyncTerminal) -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
        await _fit(terminal)  # the size may have changed before the handler was set
        async for _ in signals:
            await _fit(terminal)


async def _fit(terminal: AsyncTerminal) -> None:
    try:
        await terminal.resize(*local_size())
    except (ProcessNotFound, ConnectionLost):
        pass  # its end, or the loss, is reported where its output is read


def _exit_code(exit: TerminalExit) -> int:
    """The exit code that a shell would report."""
    if exit.exit_code is not None:
        return exit.exit_code
    if exit.status is ExecStatus.OUT_OF_MEMORY:
        return OUT_OF_MEMORY
    if exit.signal is None:
        raise AssertionError(f"a terminal that is {exit.status} has neither an exit code nor a signal")
    return 128 + exit.signal
