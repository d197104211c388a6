"""A client made from the OpenAPI document by a generator that others use."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.server.conftest import Running

BIN = Path(__file__).parents[3] / ".venv/generator/bin"

pytestmark = [
    pytest.mark.long,
    pytest.mark.may_skip,
    pytest.mark.skipif(not BIN.is_dir(), reason="there is no generator: tools/setup.sh test installs it"),
]

CONFIG = """
content_type_overrides:
  application/vnd.skerry.state: application/octet-stream
  application/x-tar: application/octet-stream
  application/x-ndjson: text/plain
  text/event-stream: text/plain
"""
PROGRAM = """
import sys
from client import AuthenticatedClient
from client.api.commands import commands_exec_command
from client.api.files import files_read
from client.api.sandboxes import sandboxes_create, sandboxes_destroy, sandboxes_list_sandboxes
from client.models import CreateSandbox, ExecResult, Problem, ResourceOptions, RunCommand, Sandbox

url, key = sys.argv[1:]
with AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True) as client:
    body = CreateSandbox(name="generated", resources=ResourceOptions(memory="256MB"))
    box = sandboxes_create.sync(client=client, body=body)
    assert isinstance(box, Sandbox) and box.resources.memory == 256_000_000, box
    result = commands_exec_command.sync(box.id, client=client, body=RunCommand(command=["seq", "2"]))
    assert isinstance(result, ExecResult) and (result.exit_code, result.stdout) == (0, "1\\n2\\n"), result
    missing = files_read.sync(box.id, client=client, path="nowhere")
    assert isinstance(missing, Problem) and (missing.status, missing.code) == (404, "FILE_NOT_FOUND"), missing
    assert [each.name for each in sandboxes_list_sandboxes.sync(client=client).items] == ["generated"]
    assert sandboxes_destroy.sync_detailed(box.id, client=client).status_code == 204
"""


def test_a_generated_client_works(server: Running, tmp_path: Path) -> None:
    with server.client_of(None) as anybody:
        document = anybody.get("/openapi.json").json()
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*command: str) -> str:
        program = [str(BIN / command[0]), *command[1:]]
        path = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(program, cwd=tmp_path, env=path, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    run("openapi-spec-validator", "openapi.json")
    said = run(
        *("openapi-python-client", "generate", "--fail-on-warning", "--meta", "none"),
        *("--path", "openapi.json", "--output-path", "client", "--config", "config.yaml"),
    )
    assert "WARNING" not in said
    operations = sum(len(each) for each in document["paths"].values())
    assert len([each for each in tmp_path.glob("client/api/*/*.py") if each.name != "__init__.py"]) == operations
    run("python", "program.py", server.url, server.key("generator"))
