"""Attacks by what is in a sandbox's files: nothing of an import, a snapshot or a volume gets the agent's place, or more room."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skerry import Sandbox, Volumes
from skerry.core import errors
from skerry.core.models import Resources, SandboxSpec
from skerry.providers.local import LocalProvider, host
from skerry.providers.local.engine import Engine
from tests.conftest import unmount_below
from tests.providers.local.isolation.conftest import still_works
from tests.providers.local.storage.test_export import made_by_hand
from tests.server.conftest import Running

MB = 10**6
AGENT = Path(host.binary("agent"))

IN_ITS_PLACE = """#!/usr/bin/python3 -I
import os, sys
open("/taken", "w").close()
os.execv("/real", sys.argv)
"""

WRITER = """#!/usr/bin/python3 -I
import errno, json, os, stat, sys
CHUNK, MOST = b"x" * (1 << 20), 64 << 20
boot = os.pread(4, 1 << 20, 0)
report = {}
def room(fd):
    info = os.fstat(fd)
    return max(info.st_blocks * 512, info.st_size)
def fill(fd):
    written = 0
    while written < MOST:
        written += os.write(fd, CHUNK)
    os.posix_fallocate(fd, 0, 4 * MOST)
    return written
def attempt(name, fd):
    if stat.S_ISCHR(os.fstat(fd).st_mode):
        return
    before = room(fd)
    try:
        fill(fd)
    except OSError as error:
        ended = errno.errorcode[error.errno]
    else:
        ended = "never"
    report[name] = (ended, room(fd) - before)
for number in range(3, 64):
    try:
        os.fstat(number)
    except OSError:
        continue
    attempt(str(number), number)
    try:
        again = os.open(f"/proc/self/fd/{number}", os.O_RDWR)
    except OSError:
        continue
    attempt(f"{number} again", again)
    os.close(again)
try:
    os.ftruncate(4, 0), os.pwrite(4, boot, 0)
except OSError:
    pass
os.lseek(4, 0, os.SEEK_SET)
if os.path.exists("/report"):  # its second start
    fd = os.open("/big", os.O_WRONLY | os.O_CREAT)
    attempt("its files", fd)
    os.close(fd)
    os.unlink("/big")
open("/report", "w").write(json.dumps(report))
os.execv("/kit/agent", sys.argv)
"""
"""A first process that writes all it can, and then serves as the agent that it replaces."""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def with_a_link(tmp_path: Path) -> bytes:
    """/.skerry/agent leads to a file while the root is made, and to another one when /proc is there."""
    tree = tmp_path / "with a link"
    for directory in ("", ".skerry", "proc/self/root"):
        (tree / directory).mkdir(parents=True, exist_ok=True)
        (tree / directory).chmod(0o755)
    (tree / ".skerry/agent").symlink_to("/proc/self/root/evil")
    (tree / "proc/self/root/evil").touch()
    program(tree / "evil", IN_ITS_PLACE)
    shutil.copy(AGENT, tree / "real")
    return made_by_hand(tree)


@contextmanager
def destroyed(engine: Engine, sandbox_id: str) -> Iterator[Sandbox]:
    """A sandbox that was imported, and is gone afterwards."""
    try:
        with Sandbox.get(sandbox_id, provider=LocalProvider(engine)) as sandbox:
            yield sandbox
    finally:
        engine.destroy(sandbox_id)


def is_the_agent(sandbox_id: str, engine: Engine) -> bool:
    init = engine.store.read(sandbox_id).init
    assert init is not None
    return Path(f"/proc/{init.pid}/exe").read_bytes() == AGENT.read_bytes()


# -- imports


def test_a_link_of_an_import_does_not_take_the_agent_s_place(with_a_link: bytes) -> None:
    engine = Engine()
    record = engine.exports.import_(io.BytesIO(with_a_link), SandboxSpec(timeout=600), None, None)
    with destroyed(engine, record.id) as sandbox:
        assert not sandbox.files.exists("/taken")
        assert is_the_agent(sandbox.id, engine)
        assert sandbox.exec("ls -A /.skerry; readlink /.skerry/agent", user="root").stdout == "agent\n"
        assert sandbox.exec("rm /.skerry/agent || mv /.skerry/agent /x", user="root").exit_code == 1
        still_works(sandbox)
        sandbox.restart()
        assert not sandbox.files.exists("/taken")


def test_a_link_of_an_import_by_a_user_of_a_server_does_not_take_the_agent_s_place(
    with_a_link: bytes, tmp_path: Path
) -> None:
    server = Running(tmp_path / "server")
    try:
        with server.client_of("mallory") as mallory:
            answer = mallory.post("/v1/states", content=with_a_link)
            assert answer.status_code == 201, answer.text
            sandbox_id = answer.json()["id"]
            seen = mallory.post(f"/v1/sandboxes/{sandbox_id}/exec", json={"command": "ls /taken"}).json()
            assert seen["exit_code"] == 2
            assert is_the_agent(sandbox_id, Engine())
            mallory.delete(f"/v1/sandboxes/{sandbox_id}")
    finally:
        server.stop()


@pytest.mark.parametrize("place", [".skerry", ".skerry/agent"])
@pytest.mark.parametrize("what", ["link", "file", "fifo", "directory"])
def test_what_an_import_has_in_the_agent_s_place_is_replaced(tmp_path: Path, place: str, what: str) -> None:
    tree = tmp_path / "tree"
    program(tree / "elsewhere/agent", IN_ITS_PLACE)
    shutil.copy(AGENT, tree / "real")
    (tree / place).parent.mkdir(exist_ok=True)
    if what == "link":
        (tree / place).symlink_to("/elsewhere/agent" if place.endswith("agent") else "/elsewhere")
    elif what == "file":
        program(tree / place, IN_ITS_PLACE)
    elif what == "fifo":
        os.mkfifo(tree / place)
    else:
        (tree / place).mkdir()
    engine = Engine()
    made = engine.exports.import_(io.BytesIO(made_by_hand(tree)), SandboxSpec(timeout=600), None, None)
    with destroyed(engine, made.id) as sandbox:
        assert not sandbox.files.exists("/taken")
        assert is_the_agent(sandbox.id, engine)
        still_works(sandbox)


@pytest.mark.parametrize("place", ["usr", "proc", "sys", "dev", ".skerry/agent/x"])
@pytest.mark.parametrize("what", ["link", "file"])
def test_an_import_with_something_in_the_place_of_a_mount_is_refused(tmp_path: Path, place: str, what: str) -> None:
    tree = tmp_path / "tree"
    program(tree / "elsewhere/agent", IN_ITS_PLACE)
    shutil.copy(AGENT, tree / "real")
    (tree / place).parent.mkdir(parents=True, exist_ok=True)
    if what == "link":
        (tree / place).symlink_to("/elsewhere")
    else:
        program(tree / place, IN_ITS_PLACE)
    engine = Engine()
    before = [info.id for info in engine.list()]
    with pytest.raises(errors.Conflict, match=f"/{place.removesuffix('/x')} in the sandbox's files is "):
        engine.exports.import_(io.BytesIO(made_by_hand(tree)), SandboxSpec(timeout=600), None, None)
    assert [info.id for info in engine.list()] == before


# -- volumes


@pytest.fixture
def volumes() -> Iterator[list[str]]:
    names = ["over-agent", "over-proc"]
    for name in names:
        Volumes().create(name)
    yield names
    for name in names:
        Volumes().delete(name)


ROUTES = {
    "root": ("/x/.skerry", "/x/proc", "mv /x /y && ln -s / /x", "/x"),
    "user": ("/workspace/x/.skerry", "/workspace/x/proc", "mv x y && ln -s / x", "/workspace/x"),
}


def test_a_volume_does_not_follow_a_link_to_the_agent_s_place(volumes: list[str], attacker: str) -> None:
    """The sandbox does not start with the link; what it has can still be had, by a snapshot."""
    over_agent, over_proc, exchange, link = ROUTES[attacker]
    with Sandbox.create(timeout=600, volumes={over_agent: volumes[0], over_proc: volumes[1]}) as sandbox:
        sandbox.files.write("/workspace/kept", b"mine")
        sandbox.files.write("/evil", IN_ITS_PLACE, user="root")
        sandbox.exec("chmod 755 /evil; cp /.skerry/agent /real", user="root", check=True)
        plant = f"ln -s /proc/self/root/evil {over_agent}/agent && mkdir -p {over_proc}/self/root"
        sandbox.exec(f"{plant} && touch {over_proc}/self/root/evil && {exchange}", user=attacker, check=True)
        sandbox.stop()
        with pytest.raises(errors.Conflict, match=f"cannot be mounted: {link} is a link") as caught:
            sandbox.start()
        assert "snapshot" in caught.value.hint
        assert sandbox.info().state == "stopped"
        snapshot = sandbox.snapshots.create()
        try:
            with Sandbox.create(timeout=600, snapshot=snapshot.id) as saved:
                assert saved.files.read("/workspace/kept") == b"mine"
                assert not saved.files.exists("/taken")
        finally:
            sandbox.snapshots.delete(snapshot.id)


# -- what overlayfs notes in a layer


@pytest.fixture
def other_defaults() -> Iterator[None]:
    """A kernel whose overlays note renamed directories and changed modes instead of copying."""
    settings = [Path("/sys/module/overlay/parameters") / name for name in ("redirect_dir", "metacopy")]
    before = [path.read_text() for path in settings]
    try:
        for path in settings:
            path.write_text("Y")
        yield
    finally:
        for path, value in zip(settings, before, strict=True):
            path.write_text(value)


def test_a_layer_holds_whole_files_whatever_the_kernel_s_defaults(other_defaults: None) -> None:
    """A note could lead to any other place of a layer, and no archive can hold it."""
    engine = Engine()
    with Sandbox.create(timeout=600) as sandbox:
        moved = "import os; os.chmod('/etc/passwd', 0o600); os.rename('/.skerry', '/elsewhere')"
        assert "Invalid cross-device link" in sandbox.exec(["python3", "-c", moved], user="root").stderr
        copied = engine.storage.uppers / sandbox.id / "u/etc/passwd"
        assert "trusted.overlay.metacopy" not in os.listxattr(copied)
        engine.exports.export(sandbox.id, io.BytesIO(), None, None)


# -- a first process that is not the agent


@pytest.fixture
def replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that starts WRITER where the agent should be: what keeps such a one out is tested above."""
    monkeypatch.setenv("SKERRY_POOL_SIZE", "600MB")
    programs = tmp_path / "programs"
    shutil.copytree(host.BINARIES, programs)
    program(programs / "agent", WRITER)
    monkeypatch.setattr(host, "BINARIES", programs)
    host.binary.cache_clear()
    engine = Engine(tmp_path / "home")
    engine.prepare()
    engine.volumes.create("kit", size=None, temporary=False)
    shutil.copy(AGENT, engine.storage.volumes / "kit/agent")
    yield engine
    for info in engine.list():
        engine.destroy(info.id)
    monkeypatch.undo()
    host.binary.cache_clear()
    unmount_below(tmp_path)


def outside_the_pool(engine: Engine) -> int:
    files = [path.lstat() for path in engine.store.sandboxes.rglob("*")]
    return sum(info.st_blocks * 512 for info in files)


def test_what_a_first_process_writes_to_its_descriptors_is_bounded(replaced: Engine) -> None:
    resources = Resources(disk=50 * MB, memory=500 * MB)
    sandbox = Sandbox.create(LocalProvider(replaced), timeout=600, volumes={"/kit": "kit"}, resources=resources)
    sandbox.restart()
    report: dict[str, tuple[str, int]] = json.loads(sandbox.files.read("/report", user="root"))
    assert set(report) >= {"3", "4", "5", "6", "its files"}
    assert all(ended != "never" for ended, _ in report.values()), report
    assert report["4"] == ["EPERM", 0]  # its boot message
    assert report["6"][0] == "EDQUOT"  # its last words
    assert all(size <= 60 * MB if name == "its files" else size <= 5 * MB for name, (_, size) in report.items()), report
    assert outside_the_pool(replaced) < MB
