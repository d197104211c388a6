"""Images from a registry of this machine: pulled, told about, cached, and refused with a reason."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry import AsyncSandbox, AsyncTemplates, BuildProgress, InvalidArgument, TemplateBuildFailed, TemplateNotFound
from skerry.sdk.templates import registry_images
from skerry.sdk.templates.registry_images import is_local_registry
from skerry.templates import Template
from tests.templates.archives import file, layer, oci_archive

pytestmark = [pytest.mark.anyio, pytest.mark.may_skip]

PROGRAM = shutil.which("docker-registry", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
USERS = "someone:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"  # "secret"


def _serve(directory: Path, *, login: bool) -> tuple[subprocess.Popen[bytes], str]:
    """A registry on a free port of this machine, and its address."""
    if PROGRAM is None:
        pytest.skip("there is no docker-registry: `tools/setup.sh test` fetches it where there is apt")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (directory / "users").write_text(USERS)
    auth = f"auth: {{htpasswd: {{realm: x, path: {directory}/users}}}}\n" if login else ""
    (directory / "config.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {directory}/data}}}}\nhttp: {{addr: '{address}'}}\n{auth}"
    )
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen([PROGRAM, "serve", directory / "config.yml"], stdout=log, stderr=log)
    host, _, port = address.partition(":")
    for _ in range(300):
        try:
            socket.create_connection((host, int(port))).close()
            return process, address
        except OSError:
            time.sleep(0.1)
    raise AssertionError((directory / "log").read_text())


def _push(archive: Path, to: str, *options: str) -> None:
    command = ["skopeo", "--insecure-policy", "copy", "-q", "--dest-tls-verify=false", *options]
    subprocess.run([*command, f"oci-archive:{archive}", f"docker://{to}"], check=True)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("image") / "image.tar"
    libraries = [Path(line.split()[-2]) for line in _libraries("/usr/bin/dash") if "/" in line]
    files = [file(str(path).lstrip("/"), path.read_bytes(), mode=0o755) for path in libraries]
    shell = layer(file("bin/sh", Path("/usr/bin/dash").read_bytes(), mode=0o755), *files)
    filling = layer(file("filling", os.urandom(20_000_000)))
    return oci_archive(archive, shell, filling, config={"Env": ["FROM=registry", "PATH=/bin"], "WorkingDir": "/data"})


def _libraries(program: str) -> list[str]:
    return subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def registry(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process, address = _serve(tmp_path_factory.mktemp("registry"), login=False)
    try:
        _push(image, f"{address}/team/app:1")
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def locked(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry that wants a login."""
    process, address = _serve(tmp_path_factory.mktemp("locked"), login=True)
    try:
        _push(image, f"{address}/app:1", "--dest-creds=someone:secret")
        yield address
    finally:
        process.kill()
        process.wait()


async def test_an_image_is_pulled_and_its_progress_told_and_kept(
    templates: AsyncTemplates, registry: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "skerry.template")
    monkeypatch.setattr(registry_images, "_TOLD_EVERY", 0.01)
    steps: list[BuildProgress] = []
    for _ in range(2):
        reference = f"docker://{registry}/team/app:1"
        async with await AsyncSandbox.create(image=reference, on_progress=steps.append) as sandbox:
            assert (await sandbox.exec("echo $FROM; pwd")).stdout == "registry\n/data\n"
    names = [step.step for step in steps]
    assert {step.template for step in steps} == {f"{registry}/team/app:1"}
    assert names[0] == "pull"
    assert names[-3:] == ["upload", "unpack", ""]  # once: the second time it is there
    assert len([name for name in names if name.startswith("pull: ") and name.endswith(" MB")]) > 1
    assert caplog.text.count("step 1 of 4: pull") == 1


async def test_a_template_is_built_on_an_image_of_a_registry(templates: AsyncTemplates, registry: str) -> None:
    template = Template(name="onit", base=f"image:docker://{registry}/team/app:1", user="root", env={"A": "1"})
    with pytest.raises(TemplateBuildFailed, match="install"):  # which this image does not have: it got that far
        await templates.build(template)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("team/app:2", TemplateNotFound, r"there is no image docker://.*/team/app:2"),
        ("team/app", TemplateNotFound, "there is no image"),
        ("nobody/nothing:1", TemplateNotFound, "there is no image"),
        ("Team/App:1", InvalidArgument, "is not the name of an image"),
    ],
)
async def test_what_the_registry_does_not_have_is_named(
    registry: str, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        await AsyncSandbox.create(image=f"docker://{registry}/{name}")
    assert caught.value.hint  # type: ignore[attr-defined]


async def test_where_no_registry_answers_the_error_says_so(registry: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(TemplateBuildFailed, match=r"no registry answers there: .*refused") as caught:
        await AsyncSandbox.create(image=f"docker://127.0.0.1:{port}/app:1")
    assert caught.value.step == "pull"


async def test_a_registry_of_a_private_network_is_out_of_reach_and_the_hint_says_how(registry: str) -> None:
    with pytest.raises(TemplateBuildFailed, match="no registry answers there") as caught:
        await AsyncSandbox.create(image="docker://10.255.255.1:5000/app:1")
    assert "skopeo copy docker://10.255.255.1:5000/app:1 oci-archive:" in caught.value.hint


async def test_a_login_is_asked_for_and_the_callers_own_is_used(
    templates: AsyncTemplates, locked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = f"docker://{locked}/app:1"
    with pytest.raises(TemplateBuildFailed, match="wants a login") as caught:
        await AsyncSandbox.create(image=reference)
    assert "skopeo login" in caught.value.hint
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    login = ["skopeo", "login", "--tls-verify=false", "--username=someone", "--password-stdin", locked]
    subprocess.run(login, input=b"secret", check=True, capture_output=True)
    async with await AsyncSandbox.create(image=reference) as sandbox:
        assert (await sandbox.exec("echo $FROM")).stdout == "registry\n"


@pytest.mark.parametrize("name", ["python:3.12", "alpine", "ghcr.io/team/app:1.2", "node:20-slim"])
async def test_a_name_without_docker_in_front_is_asked_about(name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await AsyncSandbox.create(image=name)
    assert caught.value.hint == f"did you mean docker://{name}?"
    with pytest.raises(InvalidArgument) as caught:
        await AsyncSandbox.create(image=f"./{name}.tar")
    assert "docker://" not in caught.value.hint


@pytest.mark.parametrize(
    ("reference", "local"),
    [
        ("docker://127.0.0.1:5000/app", True),
        ("docker://127.9.9.9/app", True),
        ("docker://localhost:5000/team/app:1", True),
        ("docker://LOCALHOST/app", True),
        ("docker://[::1]:5000/app", True),
        ("docker://localhost", False),  # an image of that name
        ("docker://localhost.example.com/app", False),
        ("docker://10.0.0.1:5000/app", False),
        ("docker://127.1:5000/app", False),
        ("docker://python:3.12", False),
    ],
)
def test_only_a_loopback_address_is_this_machine(reference: str, local: bool) -> None:
    assert is_local_registry(reference) is local
