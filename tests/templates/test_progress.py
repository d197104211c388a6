"""A build says what it does: in the log, and on a terminal in one line that is gone at the end."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from skerry import AsyncSandbox, AsyncTemplates
from tests.templates.archives import tiny

pytestmark = pytest.mark.anyio

PROGRAM = """
import sys
from skerry import Sandbox, TemplateBuildFailed
from skerry.templates import Command, Scripts, Template
scripts = Scripts(build=(Command("printf 'fetched \\\\033[2Ja lot\\\\n'; sleep 0.2", name="fetch"), Command(sys.argv[1])))
try:
    Sandbox.create(template=Template(name="shown", base="host", scripts=scripts)).destroy()
except TemplateBuildFailed:
    pass
"""


def run(last: str = "true", **env: str) -> str:
    """What a program that builds a template writes to a terminal."""
    master, slave = os.openpty()
    try:
        program = [sys.executable, "-c", PROGRAM, last]
        given = {**os.environ, "TERM": "xterm", **env}
        with subprocess.Popen(program, stdin=slave, stdout=slave, stderr=slave, env=given) as process:
            os.close(slave)
            said = b""
            try:
                while data := os.read(master, 4096):
                    said += data
            except OSError:
                pass  # Linux's way to say that the other side is closed
        assert process.returncode == 0, said
        return said.decode()
    finally:
        os.close(master)


async def test_a_build_is_shown_on_a_terminal_and_the_line_is_gone_at_the_end(templates: AsyncTemplates) -> None:
    said = run()
    assert "building shown:1: step 2 of 3: script 1: fetch (" in said
    assert "| fetched  [2Ja lot" in said  # what a build writes is not obeyed
    assert said.endswith("\r\x1b[K")
    assert "\n" not in said
    assert run() == ""  # it is built


async def test_the_line_is_gone_when_a_build_fails(templates: AsyncTemplates) -> None:
    said = run("exit 3")
    assert "step 3 of 3: script 2: exit 3" in said
    assert said.endswith("\r\x1b[K")


@pytest.mark.parametrize("env", [{"SKERRY_PROGRESS": "0"}, {"TERM": "dumb"}])
async def test_the_line_can_be_turned_off(templates: AsyncTemplates, env: dict[str, str]) -> None:
    assert run(**env) == ""


async def test_elsewhere_a_build_writes_nothing_but_the_log_has_its_steps(
    templates: AsyncTemplates, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, logger="skerry.template"):
        async with await AsyncSandbox.create(template=tiny("logged", "TOKEN=s3cret true")):
            pass
    said = [record.getMessage() for record in caplog.records if record.name == "skerry.template"]
    assert said[:2] == ["logged:1: step 1 of 2: directories", "logged:1: step 2 of 2: script 1"]
    assert "built a layer in " in said[2]
    assert "s3cret" not in caplog.text
    assert capfd.readouterr() == ("", "")
