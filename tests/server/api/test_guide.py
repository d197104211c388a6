"""The shell session of docs/how-to/http-api.md does what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.conftest import Running

PAGE = Path(__file__).parents[3] / "docs/how-to/http-api.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: apt-get install curl")
def test_the_shell_session_of_the_guide_runs(server: Running, tmp_path: Path) -> None:
    session = "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", session],
        env={**os.environ, "SKERRY_URL": server.url, "SKERRY_API_KEY": server.key("reader-of-the-guide")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    with server.client_of("reader-of-the-guide") as client:
        for kind in ("sandboxes", "snapshots"):
            assert client.get(f"/v1/{kind}").json()["items"] == []
