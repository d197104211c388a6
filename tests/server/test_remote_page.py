"""docs/how-to/remote.md is true: its blocks run as written, against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from skerry import FileMissing
from skerry.http import AsyncApi, Login
from tests.server.conftest import Running

PAGE = Path(__file__).parents[2] / "docs/how-to/remote.md"


def test_the_blocks_run_as_written_one_after_another(server: Running) -> None:
    blocks = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    environment = os.environ | {"SKERRY_URL": server.url, "SKERRY_API_KEY": server.key("reader-of-the-page")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_line_goes_to_the_server_too(server: Running) -> None:
    environment = os.environ | {"SKERRY_URL": server.url, "SKERRY_API_KEY": server.key("typist-of-commands")}

    def skerry(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "skerry", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    ran = skerry("run", "--", "sh", "-c", "echo over there; exit 3")
    assert (ran.stdout, ran.returncode) == ("over there\n", 3), ran.stderr
    assert skerry("ps", "-o", "json").stdout.strip() in ("[]", '{"sandboxes": []}'), "what run made is gone"


async def test_the_file_calls_by_the_id_of_a_sandbox(server: Running) -> None:
    api = AsyncApi(Login(url=server.url, key=server.key("one-request-at-a-time")))
    box = await api.create()
    try:
        await api.create_directory(box.id, "src/new")
        written = await api.write_file(box.id, "src/großes\nfile", "text")
        assert (written.size, await api.read_file(box.id, "src/großes\nfile")) == (4, b"text")
        assert [entry.path for entry in await api.list_files(box.id, "src")] == ["großes\nfile", "new"]
        await api.delete_file(box.id, "src/großes\nfile")
        with pytest.raises(FileMissing):
            await api.read_file(box.id, "src/großes\nfile")
    finally:
        await api.delete(box.id)
        await api.aclose()
