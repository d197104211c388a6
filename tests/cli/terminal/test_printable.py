"""What sandboxes and other users have named or written is shown on a terminal, and never obeyed by it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.core.models import BuiltTemplate
from skerry.providers.local import LocalProvider
from tests.cli.conftest import SKERRY, Skerry
from tests.cli.pty import Terminal

EVIL = "\x1b]0;PWNED\x07\x1b[2J\x1b]52;c;eA==\x07\rfake\nline\u202etxt\x9b2J"
"""A title, a cleared screen, a clipboard, a line written over, one more line, text turned round, and a C1 sequence."""
OBEYED = (b"\x1b]", b"\x1b[2J", b"\x07", b"\rfake", b"\nline", "\u202e".encode(), "\x9b".encode())


def shown(*arguments: str, code: int = 0, cols: int = 400) -> bytes:
    """What the program shows on a terminal, in which nothing may be what it would obey."""
    with Terminal(*arguments, cols=cols) as terminal:
        assert terminal.finish() == code, terminal.output
    assert [sequence for sequence in OBEYED if sequence in terminal.output] == [], terminal.output
    return terminal.output


@pytest.fixture
def evil_box() -> Iterator[str]:
    """A sandbox with a file, a link, a FIFO and a process of such names."""
    with Sandbox.create() as sandbox:
        program = "import os, sys; os.mkdir('d'); open(sys.argv[1], 'w'); os.symlink(sys.argv[1], 'l')"
        sandbox.exec(["python3", "-c", program + "; os.mkfifo('d/' + sys.argv[1])", EVIL], check=True)
        sandbox.processes.spawn(["sh", "-c", "sleep 1000", EVIL])
        yield sandbox.id


def test_names_from_a_sandbox_are_printable_on_a_terminal_and_exact_elsewhere(evil_box: str, skerry: Skerry) -> None:
    for arguments in (("ls", evil_box), ("ls", "-l", evil_box)):
        assert rb"\x1b]0;PWNED\x07\x1b[2J" in shown(*arguments)
        assert EVIL.encode() + b"\n" in skerry(*arguments).out
    assert b" -> \\x1b]0;PWNED" in shown("ls", "-l", evil_box)


def test_errors_lists_and_notes_are_printable(evil_box: str, tmp_path: Path, skerry: Skerry) -> None:
    missing = f"/none/{EVIL}"
    assert rb"\x1b]0;PWNED\x07\x1b[2J" in shown("cat", evil_box, missing, code=1)
    assert "\x1b" not in skerry("cat", evil_box, missing).err
    assert rb"\x1b]0;PWNED\x07\x1b[2J" in shown("logs", "--list", evil_box)
    assert rb"left out: \x1b]0;PWNED" in shown("cp", "-q", f"{evil_box}:d", str(tmp_path))


def test_descriptions_that_are_stored_already_are_printable(box: str, skerry: Skerry) -> None:
    async def store() -> str:
        """Past the check of what is new, as an older version did."""
        provider = LocalProvider()
        made = BuiltTemplate(name="evil:1", id="e" * 40, description=EVIL, host=True)
        await provider.add_template(made)
        return (await provider.create_snapshot(box, name="evil", description=EVIL)).id

    snapshot = asyncio.run(store())
    try:
        assert rb"\x1b]0;PWNED\x07\x1b[2J" in shown("snapshot", "ls")
        assert rb"\x1b]0;PWNED\x07\x1b[2J" in shown("template", "ls")
        assert rb"\x1b]0;PWNED\x07\x1b[2J" in shown("template", "show", "evil")
        asked = subprocess.run(
            [SKERRY, "__complete", "fish", "snapshot", "restore", box, "ev"],
            env=os.environ,
            capture_output=True,
            check=True,
        )
        assert not any(sequence in asked.stdout for sequence in OBEYED)
    finally:
        skerry("snapshot", "rm", snapshot)
        skerry("template", "rm", "evil")


def test_what_a_program_writes_itself_reaches_the_terminal_as_it_is(box: str) -> None:
    with Terminal("exec", box, "--", "printf", r"\033[31mred\033[0m") as terminal:
        assert terminal.finish() == 0
    assert terminal.output == b"\x1b[31mred\x1b[0m"
