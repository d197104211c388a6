"""Attacks on the machine's files and processes."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.audit.attempt import Attempt, Verdict, judge
from skerry.audit.attempts import HOST
from skerry.audit.planted import PLACES, Planted
from skerry.core import errors
from tests.providers.local.isolation.conftest import Attack, tried


@pytest.fixture(scope="module")
def marker() -> str:
    return f"skerry-mark-{secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def planted(marker: str) -> Iterator[list[Path]]:
    """Files of the machine, readable by all, that nobody inside may see."""
    paths = [Path(place) / marker for place in PLACES if Path(place).is_dir()]
    for path in paths:
        path.write_text(marker)
        path.chmod(0o644)
    yield paths
    for path in paths:
        path.unlink()


@pytest.fixture(scope="module")
def machine() -> Iterator[Planted]:
    """What `skerry audit` plants on the machine before it attacks."""
    with Planted(open_network=False) as machine:
        yield machine


@pytest.mark.parametrize("attempt", HOST, ids=[attempt.name for attempt in HOST])
def test_what_the_audit_plants_is_out_of_reach(
    sandbox: Sandbox, attacker: str, machine: Planted, attempt: Attempt
) -> None:
    if attacker not in attempt.users:
        return
    answer = tried(sandbox, attempt, attacker, machine.given)
    assert machine.changes() == []
    if attempt.on_host and answer.how == "returned":
        assert attempt.name in (
            "make files in directories of the machine",
            "change /etc/passwd",
        )  # done to the sandbox's own files
    else:
        assert judge(attempt, answer) is Verdict.DENIED, answer


def test_root_only_files_under_usr_are_there_and_unreadable(attack: Attack, machine: Planted) -> None:
    assert attack(f'return open("{machine.given["secret"]}").read()') == "EACCES"
    assert attack(f'return os.listdir("{machine.given["secrets"]}")') == "EACCES"
    assert attack(f'return open("{machine.given["secrets"]}/key").read()') == "EACCES"


def test_a_walk_of_everything_finds_no_file_of_the_machine(
    sandbox: Sandbox, attacker: str, planted: list[Path], marker: str
) -> None:
    assert planted
    command = f"find / -path /proc -prune -o -path /sys -prune -o -name '{marker}*' -print 2>/dev/null | head"
    found = sandbox.exec(command, user=attacker, timeout=60)
    assert found.stdout == ""


@pytest.mark.parametrize(
    "path",
    ["/etc/shadow", "/etc/ssh/ssh_host_rsa_key", "/root/.ssh/id_rsa", "/etc/ssl/private", "/etc/machine-id", "/boot"],
)
def test_keys_and_accounts_are_not_there(attack: Attack, path: str) -> None:
    attack(f'return os.listdir("{path}") if os.path.isdir("{path}") else open("{path}").read()')


def test_processes_of_the_machine_are_invisible(sandbox: Sandbox, attacker: str, marker: str) -> None:
    host = subprocess.Popen(["sleep", "600"], env={"MARK": marker, "PATH": "/usr/bin:/bin"})
    try:
        listing = "for f in /proc/[0-9]*; do cat $f/cmdline $f/environ 2>/dev/null; echo; done"
        seen = sandbox.exec(listing, user=attacker)
        assert marker not in seen.stdout
        pids = sandbox.exec("ls /proc | grep -c '^[0-9]'", user=attacker)
        assert int(pids.stdout) < 20
        kill = sandbox.exec(["kill", "-9", str(host.pid)], user=attacker)
        assert kill.exit_code != 0
        assert host.poll() is None
    finally:
        host.kill()
        host.wait()


def test_environment_of_the_client_does_not_leak(monkeypatch: pytest.MonkeyPatch, marker: str) -> None:
    monkeypatch.setenv("SKERRY_TEST_SECRET", marker)
    with Sandbox.create() as sandbox:
        for user in ("user", "root"):
            seen = sandbox.exec("env; cat /proc/[0-9]*/environ 2>/dev/null; true", user=user).stdout
            assert marker not in seen
            assert "SKERRY" not in seen


@pytest.mark.parametrize(
    "path", ["/usr/bin/evil", "/usr/lib/evil", "/bin/evil", "/lib/evil", "/.skerry/agent", "/proc/evil", "/sys/evil"]
)
def test_nothing_outside_the_sandbox_is_written(attack: Attack, path: str) -> None:
    attack(f'return os.write(os.open("{path}", os.O_WRONLY | os.O_CREAT), b"x")')


def test_existing_programs_cannot_be_replaced(attack: Attack) -> None:
    attack('return os.rename("/usr/bin/true", "/usr/bin/false")')
    attack('return os.unlink("/usr/bin/true")')
    attack('return os.chmod("/usr/bin/true", 0o777)')
    attack('return os.unlink("/.skerry/agent")')
    attack('return os.rename("/.skerry", "/.moved")')


def test_what_root_changes_stays_in_its_sandbox(sandbox: Sandbox, neighbour: Sandbox) -> None:
    before = Path("/etc/passwd").read_bytes()
    sandbox.exec(
        "echo evil:x:0:0::/:/bin/sh >> /etc/passwd; echo x > /etc/evil; chmod 4755 /etc/evil", user="root", check=True
    )
    assert Path("/etc/passwd").read_bytes() == before
    assert not Path("/etc/evil").exists()
    assert not neighbour.files.exists("/etc/evil")
    assert "evil" not in neighbour.files.read_text("/etc/passwd")


def test_another_user_of_the_machine_cannot_reach_a_sandbox_s_files(sandbox: Sandbox, skerry_home: Path) -> None:
    sandbox.exec(
        "cp /bin/sh /workspace/rootshell; chown root /workspace/rootshell; chmod 4755 /workspace/rootshell", user="root"
    )
    upper = skerry_home / "pool/uppers" / sandbox.id / "u/workspace/rootshell"
    assert upper.exists()
    probe = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "ls", str(upper)]
    assert subprocess.run(probe, capture_output=True).returncode != 0


def test_the_accounts_of_the_storage_pool_cannot_be_seen(sandbox: Sandbox, attacker: str) -> None:
    """They say how much every sandbox of the machine has written."""
    assert list(Path("/sys/fs/btrfs").glob("*/qgroups/*/referenced"))
    found = sandbox.exec("ls -A /sys/fs/btrfs; cat /sys/fs/btrfs/*/qgroups/*/referenced", user=attacker)
    assert found.stdout == ""


@pytest.fixture
def disk_in_a_file(tmp_path: Path) -> Iterator[Path]:
    """A disk of the machine whose content is a file, as that of a storage pool: the kernel shows the file's path."""
    file = tmp_path / "disk"
    file.write_bytes(bytes(1 << 20))
    device = subprocess.run(
        ["losetup", "-f", "--show", file], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        yield Path("/sys/block", Path(device).name)
    finally:
        subprocess.run(["losetup", "-d", device], check=True)


def test_files_that_the_machine_s_disks_are_in_cannot_be_seen(
    sandbox: Sandbox, attacker: str, disk_in_a_file: Path
) -> None:
    assert (disk_in_a_file / "loop/backing_file").exists()
    found = sandbox.exec(
        f"ls -A /sys/block /sys/devices/virtual/block; cat {disk_in_a_file}/loop/* 2>/dev/null;"
        " find /sys -name backing_file -exec cat {} + 2>/dev/null",
        user=attacker,
    )
    assert found.stdout == "/sys/block:\n\n/sys/devices/virtual/block:\n"


def test_links_to_the_machine_s_paths_lead_nowhere(
    sandbox: Sandbox, planted: list[Path], marker: str, tmp_path: Path
) -> None:
    target = next(path for path in planted if str(path).startswith("/var/tmp"))
    sandbox.exec(["ln", "-sfn", str(target), "/workspace/link"], check=True)
    for user in ("user", "root"):
        with pytest.raises(errors.FileMissing):
            sandbox.files.read("/workspace/link", user=user)
        with pytest.raises(errors.FileMissing):
            sandbox.files.download("/workspace/link", tmp_path / "got", user=user)
    assert not (tmp_path / "got").exists()
    sandbox.files.write("/workspace/link", b"inside", user="root")
    assert target.read_text() == marker
    sandbox.exec(["ln", "-sfn", "/proc/1/root", "/workspace/up"], check=True)
    with pytest.raises((errors.PermissionDenied, errors.FileMissing)):
        sandbox.files.read(f"/workspace/up{target}")
    escaped = "../" * 40 + str(target).lstrip("/")
    assert sandbox.files.read(escaped, user="root") == b"inside"


def test_fifos_and_devices_are_no_files(sandbox: Sandbox) -> None:
    sandbox.exec("mkfifo /workspace/fifo; ln -s /dev/zero /workspace/zero; ln -s /dev/tty /workspace/tty", check=True)
    for name in ("fifo", "zero", "tty"):
        with pytest.raises(errors.FileError) as caught:
            sandbox.files.read(f"/workspace/{name}")
        assert caught.value.code == "NOT_A_FILE"
        with pytest.raises(errors.FileError) as caught:
            sandbox.files.write(f"/workspace/{name}", b"x")
        assert caught.value.code == "NOT_A_FILE"
    with pytest.raises(errors.IsADirectory):
        sandbox.files.read("/workspace")
    assert os.path.exists("/dev/zero")
