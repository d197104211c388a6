"""Builds that are interrupted, killed, or wanted by several processes at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skerry import AsyncSandbox, AsyncTemplates, DiskFull, SandboxNotFound, TemplateBuildFailed, TemplateNotFound
from skerry.providers.local import LocalProvider
from skerry.providers.local.engine import Engine
from skerry.sdk.templates.builder import Builder
from skerry.templates import Command, Scripts, Template
from tests import inventory
from tests.conftest import unmount_below

pytestmark = pytest.mark.anyio


class Build:
    """`skerry template build` in a process of its own."""

    def __init__(self, directory: Path) -> None:
        program = [sys.executable, "-m", "skerry", "template", "build", str(directory)]
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + 60
        while words not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def finish(self) -> int:
        code = self.process.wait(90)
        self._reader.join(10)
        return code


@contextmanager
def building(directory: Path) -> Iterator[Build]:
    build = Build(directory)
    try:
        yield build
    finally:
        build.process.kill()
        build.process.communicate()


def write(directory: Path, script: str) -> Path:
    (directory / "template.yaml").write_text(f"name: slow\nbase: host\nscripts:\n  build: {script}\n")
    return directory


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_build_leaves_nothing(
    templates: AsyncTemplates, tmp_path: Path, skerry_home: Path, signum: signal.Signals
) -> None:
    before = inventory.take(skerry_home)
    with building(write(tmp_path, "echo begun; sleep 1000")) as build:
        build.wait_for("\nbegun\n")
        build.process.send_signal(signum)
        assert build.finish() == 128 + signum
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


async def test_of_two_processes_one_builds_and_the_other_uses_it(templates: AsyncTemplates, tmp_path: Path) -> None:
    write(tmp_path, "echo begun; sleep 2; date +%N >stamp")
    with building(tmp_path) as first:
        first.wait_for("\nbegun\n")
        with building(tmp_path) as second:
            assert (first.finish(), second.finish()) == (0, 0)
    assert "begun" not in second.said
    assert len([info for info in await templates.list() if info.digest]) == 1


async def test_when_the_first_dies_the_second_builds(
    templates: AsyncTemplates, tmp_path: Path, skerry_home: Path
) -> None:
    before = inventory.take(skerry_home)
    write(tmp_path, "echo begun; sleep 3; echo built >file")
    with building(tmp_path) as first:
        first.wait_for("\nbegun\n")
        with building(tmp_path) as second:
            time.sleep(1)
            first.process.kill()
            assert second.finish() == 0, second.said
    assert "\nbegun\n" in second.said
    async with await AsyncSandbox.create(template="slow", build=False) as sandbox:
        assert (await sandbox.exec("cat file")).stdout == "built\n"
    await templates.remove("slow")
    await LocalProvider().sweep()  # as the next command does
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


async def test_one_that_waits_builds_when_the_first_fails(templates: AsyncTemplates) -> None:
    """The one who failed names the step; the other tries for itself and says the same."""
    template = Template(name="failing", base="host", scripts=Scripts(build=(Command("sleep 0.5; exit 3"),)))
    outcomes = await asyncio.gather(*(templates.build(template) for _ in range(2)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [TemplateBuildFailed] * 2


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (Command("true", "nobody-like-that"), "could not be run: unable to find user nobody-like-that"),
        (Command("kill -9 -1; sleep 1000", "root"), "signal 9|could not be run"),
    ],
)
async def test_a_step_that_cannot_be_run_is_named(
    templates: AsyncTemplates, skerry_home: Path, command: Command, said: str
) -> None:
    before = inventory.take(skerry_home)
    template = Template(name="unrun", base="host", scripts=Scripts(build=(Command("true"), command)))
    with pytest.raises(TemplateBuildFailed, match=said) as caught:
        await templates.build(template)
    assert caught.value.step == f"script 2: {command.run}"
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


async def test_a_post_create_that_cannot_be_run_is_named(templates: AsyncTemplates) -> None:
    scripts = Scripts(post_create=(Command("true", "nobody-like-that"),))
    with pytest.raises(TemplateBuildFailed, match="unable to find user nobody-like-that") as caught:
        await AsyncSandbox.create(template=Template(name="unprepared", base="host", scripts=scripts), name="never")
    assert caught.value.step == "postCreate 1: true"
    with pytest.raises(SandboxNotFound):
        await AsyncSandbox.find("never")


@pytest.fixture
def small_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalProvider]:
    """A provider with a home of its own whose pool has 300 MB."""
    monkeypatch.setenv("SKERRY_POOL_SIZE", "300MB")
    monkeypatch.setenv("SKERRY_STORAGE", "pool")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("SKERRY_HOME", str(home))
    yield LocalProvider(Engine(home))
    unmount_below(tmp_path)


@pytest.mark.parametrize(
    "script",
    ["head -c 900M /dev/urandom >big", "head -c 900M /dev/urandom >big || rm big; exit 1"],
    ids=["is told", "tidies up"],
)
async def test_a_full_pool_in_the_middle_of_a_build_leaves_nothing(small_pool: LocalProvider, script: str) -> None:
    home = Path(os.environ["SKERRY_HOME"])
    await small_pool.list()
    before = inventory.take(home)
    builder = Builder(small_pool)
    template = Template(name="filling", base="host", scripts=Scripts(build=(Command(script),)))
    with pytest.raises(DiskFull, match="head -c 900M"):
        await builder.build(template)
    assert inventory.left(before, inventory.settle(home, before)) == {}
    with pytest.raises(TemplateNotFound):
        await small_pool.find_template("filling")
    small = Template(name="small", base="host", scripts=Scripts(build=(Command("echo x >file"),)))
    deadline = time.monotonic() + 60
    while True:  # what was deleted can be used again as soon as the file system has got round to it
        try:
            assert (await builder.build(small)).layers
            break
        except DiskFull:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
