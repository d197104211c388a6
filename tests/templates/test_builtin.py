"""The templates that come with Skerry, as they are: built once, quick afterwards, and their servers serve.

All of them together take minutes, so that `make test` runs this module beside the others.
"""

from __future__ import annotations

import asyncio
import http.client
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from skerry import AsyncSandbox, AsyncTemplates, BuildProgress, Conflict
from skerry.templates import Packages, Template
from skerry.templates.aptsources import os_release

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]

PATIENCE = 300.0
"""Seconds that a server may take on a machine with much else to do."""


@dataclass(frozen=True, slots=True)
class Server:
    """What a template's server says at `path`, and the file in which it is written."""

    path: str
    words: str
    file: str


SERVERS = {
    "fastapi": Server("/?name=the+host", "Hello from the host", "main.py"),
    "node-ts": Server("/?name=the+host", "Hello from the host", "src/greeting.ts"),
    "react-ts": Server("/src/App.tsx", "Hello from React", "src/App.tsx"),
    "vue-ts": Server("/src/App.vue", "Hello from Vue", "src/App.vue"),
    "svelte-ts": Server("/", "Hello from SvelteKit", "src/routes/+page.server.ts"),
    "nextjs": Server("/", "Hello from Next.js", "app/page.tsx"),
}
NAMES = ("debian", "node", "python", *SERVERS)


@pytest.fixture(scope="module")
async def built(anyio_backend: str) -> AsyncIterator[list[BuildProgress]]:
    """All of them are built, wanted at the same time; every step that ran for it."""
    templates = AsyncTemplates()
    steps: list[BuildProgress] = []
    await asyncio.gather(*(templates.build(name, on_progress=steps.append) for name in NAMES))
    yield steps
    for name in reversed(NAMES):  # bases after those that are built on them
        await templates.remove(name)


async def test_each_was_built_once(built: list[BuildProgress]) -> None:
    finished = Counter(step.template.partition(":")[0] for step in built if not step.step)
    assert finished == dict.fromkeys(NAMES, 1)
    sizes = {info.name: info.size for info in await AsyncTemplates().list() if info.digest}
    assert sizes.keys() == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
async def test_a_create_of_what_is_built_is_as_quick_as_one_of_host(built: list[BuildProgress], name: str) -> None:
    said: list[object] = []

    async def create(template: str) -> float:
        started = time.perf_counter()
        async with await AsyncSandbox.create(template=template, on_progress=said.append, on_log=said.append):
            return time.perf_counter() - started

    measured = [(await create(name), await create("host")) for _ in range(3)]
    assert said == []
    mine, host = map(min, zip(*measured, strict=True))
    assert mine < 3 * host + 0.5


async def test_debian_is_a_system_of_its_own(built: list[BuildProgress]) -> None:
    async with await AsyncSandbox.create(template="debian") as sandbox:
        result = await sandbox.exec(
            ". /etc/os-release; echo $ID:$VERSION_CODENAME; id -un; pwd; git init -q . && ls -d .git; "
            "curl --version | head -c 5; echo; python3 -c 'print(6 * 7)'; ls /usr/share/man | wc -l",
            check=True,
        )
        system = os_release()
        release = f"{system['ID']}:{system['VERSION_CODENAME']}"
        assert result.stdout == f"{release}\nuser\n/workspace\n.git\ncurl \n42\n0\n"
        unpack = "for way in -z -j -J --zstd; do tar $way -cf - .git | tar $way -tf - || exit 1; done"
        await sandbox.exec(unpack, check=True)
        await sandbox.exec("touch /usr/bin/mine; test -s /usr/share/doc/bash/copyright", user="root", check=True)


async def test_python_is_an_interpreter_in_an_empty_directory_where_nothing_runs(built: list[BuildProgress]) -> None:
    async with await AsyncSandbox.create(language="python", build=False) as sandbox:
        result = await sandbox.exec("command -v python; python -c 'import fastapi, uvicorn'; ls -A; pwd", check=True)
        assert result.stdout == "/opt/python/bin/python\n/workspace\n"
        assert (await sandbox.info()).ports == ()
        assert await sandbox.processes.list() == []
        assert await sandbox.ports.list() == []


async def test_another_template_is_built_on_debian_with_its_packages(built: list[BuildProgress]) -> None:
    templates = AsyncTemplates()
    async with await AsyncSandbox.create(
        template=Template(name="with-tree", base="debian", packages=Packages(apt=("tree",)))
    ) as sandbox:
        assert (await sandbox.exec(["tree", "--version"])).ok
    await templates.remove("with-tree")


async def test_node_has_npm(built: list[BuildProgress]) -> None:
    async with await AsyncSandbox.create(template="node") as sandbox:
        result = await sandbox.exec("node --version && npm --version && npm prefix --global && id -un", check=True)
        version, npm, prefix, user = result.stdout.split()
        assert f"node:{version.removeprefix('v')}" == (await sandbox.info()).template
        assert npm[0].isdigit()
        assert (prefix, user) == ("/opt/npm", "user")


@pytest.mark.long
async def test_code_runs_in_the_language_of_the_template(built: list[BuildProgress]) -> None:
    async with await AsyncSandbox.create(template="node") as sandbox:
        assert (await sandbox.code_run("console.log([6 * 7].at(0))")).result == "42\n"
        typed = await sandbox.code_run("const x: number = 42; console.log(x)", language="typescript", check=True)
        assert (typed.result, typed.stderr) == ("42\n", "")


@pytest.mark.parametrize("name", ["node:18", "node:20", "node:22"])
async def test_every_version_of_node_runs_with_an_npm_that_suits_it(built: list[BuildProgress], name: str) -> None:
    async with await AsyncSandbox.create(template=name) as sandbox:
        result = await sandbox.exec("node --version && npm exec --offline -c 'node -p 6*7'", check=True)
        assert result.stdout.splitlines()[0].startswith(f"v{name.removeprefix('node:')}.")
        assert result.stdout.splitlines()[-1] == "42"
        assert "npm warn" not in result.stderr.lower()
    await AsyncTemplates().remove(name)


@pytest.mark.long
async def test_full_stack_dev_has_what_its_build_has_tried(built: list[BuildProgress]) -> None:
    log: list[str] = []
    await AsyncTemplates().build("full-stack-dev", on_log=log.append)
    said = "".join(log)
    for words in ("npm 11.", "yarn 1.", "pnpm 12.", "bun runs 42", "node v24.", "python 3.", "go runs", "rust runs"):
        assert words in said
    async with await AsyncSandbox.create(language="go") as sandbox:  # without a network
        await sandbox.exec("git init -q . && cargo init -q --vcs none && cargo run -q", check=True)
    await AsyncTemplates().remove("full-stack-dev")


@pytest.mark.long
async def test_pytorch_computes_on_the_cpu(built: list[BuildProgress]) -> None:
    code = "import numpy, torch; print(torch.tensor(numpy.ones(42)).sum().item(), torch.cuda.is_available())"
    async with await AsyncSandbox.create(template="pytorch") as sandbox:
        assert (await sandbox.exec(["python", "-c", code], check=True)).stdout == "42.0 False\n"
    await AsyncTemplates().remove("pytorch")


@pytest.mark.parametrize("name", SERVERS)
async def test_its_server_answers_and_shows_a_change(built: list[BuildProgress], name: str) -> None:
    server = SERVERS[name]
    async with await AsyncSandbox.create(template=name) as sandbox:
        (port,) = (await sandbox.info()).ports
        async with await sandbox.ports.forward(port, wait=PATIENCE) as forward:
            url = f"{forward.url}{server.path}"
            await _served(url, server.words)
            text = (await sandbox.files.read(server.file)).decode()
            assert "Hello from" in text
            await sandbox.files.write(server.file, text.replace("Hello from", "Goodbye from"))
            await _served(url, server.words.replace("Hello", "Goodbye"))
        if name == "fastapi":
            with pytest.raises(Conflict, match="in use"):
                await AsyncTemplates().remove(name)


async def _served(url: str, words: str) -> None:
    """Wait until the page has these words. A server that starts anew refuses or resets connections meanwhile."""
    end = time.monotonic() + PATIENCE
    last = ""
    while words not in last:
        assert time.monotonic() < end, f"{url} has no {words!r}: {last[:2000]}"
        try:
            last = await asyncio.to_thread(_get, url)
        except (OSError, http.client.HTTPException) as error:
            last = repr(error)
            await asyncio.sleep(0.1)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:
        return str(response.read().decode())
