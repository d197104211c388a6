"""`debian` and `python` for real: bootstrapped from packages, with a server that answers. Takes minutes."""

from __future__ import annotations

import json
import urllib.request

import anyio
import pytest

from skerry import AsyncSandbox, AsyncTemplates, BuildProgress
from skerry.templates import Packages, Template

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]


def get(url: str) -> dict[str, str]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: dict[str, str] = json.load(answer)
        return found


async def test_debian_and_python_are_built_once_and_serve() -> None:
    templates = AsyncTemplates()
    steps: list[BuildProgress] = []
    async with await AsyncSandbox.create(template="python", on_progress=steps.append) as sandbox:
        assert {step.template.partition(":")[0] for step in steps} == {"debian", "python"}
        forward = await sandbox.ports.forward(8000, wait=120)
        url = f"http://127.0.0.1:{forward.local_port}"
        assert (await anyio.to_thread.run_sync(get, f"{url}/openapi.json"))["openapi"]
        result = await sandbox.exec(
            "id -un; pwd; command -v python; python -c 'import fastapi'; cat /etc/debian_version"
        )
        assert result.stdout.split()[:3] == ["user", "/workspace", "/opt/python/bin/python"]
        assert result.ok
    steps.clear()
    async with await AsyncSandbox.create(language="python", build=False, on_progress=steps.append) as sandbox:
        assert (await sandbox.info()).ports == (8000,)
    assert steps == []

    extended = Template(name="with-tree", base="debian", packages=Packages(apt=("tree",)))
    async with await AsyncSandbox.create(template=extended) as sandbox:
        assert (await sandbox.exec(["tree", "--version"])).ok
    for name in ("with-tree", "python", "debian"):
        await templates.remove(name)
