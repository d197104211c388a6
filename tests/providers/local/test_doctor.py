"""What `skerry doctor` says of machines that differ from this one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skerry.providers.local.host import knows_filesystem
from skerry.providers.local.storage import btrfs
from tests.conftest import unmount_below

DOCTOR = [sys.executable, "-m", "skerry", "doctor", "-o", "json"]


def diagnose(script: str, home: Path) -> tuple[int, Mapping[str, Any]]:
    """The exit code and the checks by name of a doctor in mounts of its own, after `script` has changed them."""
    command = ["unshare", "-m", "sh", "-euc", f'{script}; exec "$@"', "sh", *DOCTOR]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SKERRY_HOME": str(home), "SKERRY_POOL_SIZE": "600MB"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_a_file_system_whose_module_is_not_loaded_is_not_missing(tmp_path: Path) -> None:
    listed = Path("/proc/filesystems").read_text().splitlines(keepends=True)
    (tmp_path / "filesystems").write_text(
        "".join(line for line in listed if line.split()[-1] not in ("overlay", "btrfs"))
    )
    try:
        _, checks = diagnose(f"mount --bind {tmp_path}/filesystems /proc/filesystems", tmp_path / "home")
    finally:
        unmount_below(tmp_path)
    assert checks["kernel"]["ok"], checks["kernel"]
    assert checks["storage"]["detail"] == "a btrfs pool in a file"
    assert "sandbox" in checks  # which the kernel lets nobody start while something covers a part of /proc


def test_a_file_system_that_the_kernel_has_not_is_missing() -> None:
    assert not knows_filesystem("no-such-file-system")
    assert not knows_filesystem("fs")  # the end of another name


def test_cgroups_that_cannot_be_written_are_said(tmp_path: Path) -> None:
    """As in a service with ProtectControlGroups=yes, and in a container that is not privileged."""
    script = "grep -E '^[^ ]+ /sys/fs/cgroup' /proc/mounts | while read -r _ place _; do mount -o remount,bind,ro \"$place\"; done"
    code, checks = diagnose(script, tmp_path / "home")
    assert code == 1
    assert "Read-only file system" in checks["cgroups"]["detail"]
    assert "ProtectControlGroups=no" in checks["cgroups"]["fix"]


def test_a_home_on_btrfs_without_accounts_is_told_to_have_no_limit(tmp_path: Path) -> None:
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(600 << 20)
    subprocess.run(["mkfs.btrfs", "-q", "-m", "single", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    try:
        _, before = diagnose(":", place / "home")
        btrfs.enable_quotas(place)
        _, after = diagnose(":", place / "home")
    finally:
        unmount_below(tmp_path)
    assert (before["storage"]["ok"], before["storage"]["fix"]) == (False, f"btrfs quota enable {place}")
    assert after["storage"]["ok"]


@pytest.mark.parametrize(
    ("files", "keeps"),
    [
        ({}, True),  # kernels before 6.7
        ({"mode": "qgroup\n"}, True),
        ({"mode": "squota\n"}, False),
        (None, False),
    ],
)
def test_accounts_are_found_on_kernels_old_and_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str] | None, keeps: bool
) -> None:
    shown = tmp_path / "qgroups"
    if files is not None:
        shown.mkdir()
        for name, text in files.items():
            (shown / name).write_text(text)
    monkeypatch.setattr(btrfs, "_qgroups", lambda path: shown)
    assert btrfs.has_quotas(tmp_path) is keeps
