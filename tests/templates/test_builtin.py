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
    "python": Server("/?name=the+host", "Hello from the host", "main.py"),
    "node-ts": Server("/?name=the+host", "Hello from the host", "src/greeting.ts"),
    "react-ts": Server("/src/App.tsx", "Hello from React", "src/App.tsx"),
    "vue-ts": Server("/src/App.vue", "Hello from Vue", "src/App.vue"),
    "svelte-ts": Server("/", "Hello from SvelteKit", "src/routes/+page.server.ts"),
    "nextjs": Server("/", "Hello from Next.js", "app/page.tsx"),
}
NAMES = ("debian", "node", *SERVERS)


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
    sizes = {info.name: info.size for info in await AsyncTemplates().list() if info.built}
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


async def test_python_has_an_environment_of_its_own(built: list[BuildProgress]) -> None:
    async with await AsyncSandbox.create(language="python", build=False) as sandbox:
        result = await sandbox.exec("command -v python; python -c 'import fastapi'", check=True)
        assert result.stdout == "/opt/python/bin/python\n"
        assert (await sandbox.info()).ports == (8000,)


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
        if name == "python":
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
