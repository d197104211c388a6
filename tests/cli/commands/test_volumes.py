"""`skerry volume`, `skerry storage`, and the options that sandboxes are given volumes and disk with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry import VolumeMount
from skerry.cli.options import parse_volumes
from tests.cli.conftest import Skerry
from tests.conftest import unmount_below


@pytest.fixture
def volume(skerry: Skerry) -> Iterator[str]:
    made = skerry("volume", "create", "cli-data", "--size", "30MB")
    assert (made.code, made.text) == (0, "cli-data\n"), made.err
    yield "cli-data"
    skerry("volume", "rm", "cli-data")


def test_what_one_run_writes_the_next_reads(skerry: Skerry, volume: str, nothing_left: None) -> None:
    assert skerry("run", "--volume", f"{volume}:/data", "--", "sh", "-c", "echo kept > /data/f").code == 0
    done = skerry("run", "-v", f"{volume}:/data:ro", "--", "sh", "-c", "cat /data/f; touch /data/g")
    assert (done.code, done.text) == (1, "kept\n")
    assert "Read-only" in done.err
    assert skerry("run", "-v", f"{volume}:/part:a/b", "-v", f"{volume}:/all", "--", "ls", "/all").text == "a\nf\n"
    missing = skerry("run", "-v", f"{volume}:/part:nope:ro", "--", "true")
    assert (missing.code, "(FILE_NOT_FOUND)" in missing.err) == (125, True)


def test_volumes_are_listed_shown_and_removed(skerry: Skerry, volume: str) -> None:
    listed = {info["name"]: info for info in skerry("volume", "ls", "-o", "json").json}
    assert (listed[volume]["size"], listed[volume]["temporary"], listed[volume]["sandboxes"]) == (30_000_000, False, [])
    assert skerry("volume", "ls").text.split()[:6] == ["NAME", "USED", "SIZE", "AGE", "KIND", "SANDBOXES"]
    shown = skerry("volume", "show", volume)
    assert "size:        30 MB" in shown.text
    assert skerry("volume", "show", volume, "-o", "json").json == listed[volume] | {
        "used": skerry("volume", "show", volume, "-o", "json").json["used"]
    }
    done = skerry("volume", "rm", "no-such", volume)
    assert (done.code, done.text) == (1, f"{volume}\n")
    assert "(VOLUME_NOT_FOUND)" in done.err
    assert skerry("volume", "show", volume).code == 1


def test_a_volume_in_use_is_not_removed(skerry: Skerry, volume: str) -> None:
    sandbox = skerry("create", "--volume", f"{volume}:/data:sub:ro", "--volume", f"{volume}:/all").err
    assert "(FILE_NOT_FOUND)" in sandbox  # read-only makes no directory
    sandbox = skerry("create", "--volume", f"{volume}:/data:sub", "--volume", f"{volume}:/all:ro").text.strip()
    try:
        assert f"volumes:     {volume}:/all:ro {volume}:/data:sub" in skerry("info", sandbox).text
        assert skerry("volume", "show", volume, "-o", "json").json["sandboxes"] == [sandbox]
        done = skerry("volume", "rm", volume, "-o", "json")
        assert (done.code, done.json, done.error["code"]) == (1, {"removed": []}, "CONFLICT")
    finally:
        skerry("rm", sandbox)
    assert skerry("volume", "rm", volume, "-o", "json").json == {"removed": [volume]}


def test_a_temporary_volume_goes_with_its_sandbox(skerry: Skerry) -> None:
    made = skerry("volume", "create", "cli-brief", "--temporary", "-o", "json").json
    assert made["temporary"] is True
    assert skerry("run", "-v", "cli-brief:/x", "--", "touch", "/x/f").code == 0
    assert "cli-brief" not in skerry("volume", "ls").text


@pytest.mark.parametrize(
    "wrong", ["data", "data:relative", "data:/x:y:z:ro", ":/x", "data:/", "data:/proc", "data:/x:../y"]
)
def test_a_volume_option_that_makes_no_sense_is_refused(skerry: Skerry, wrong: str, nothing_left: None) -> None:
    done = skerry("run", "--volume", wrong, "--", "true")
    assert (done.code, "(INVALID_ARGUMENT)" in done.err) == (125, True), done.err


def test_names_taken_and_unknown_are_said(skerry: Skerry, volume: str, nothing_left: None) -> None:
    assert "(CONFLICT)" in skerry("volume", "create", volume).err
    assert "(INVALID_ARGUMENT)" in skerry("volume", "create", "Not A Name").err
    assert "(INVALID_ARGUMENT)" in skerry("volume", "create", "x", "--size", "lots").err
    done = skerry("create", "--volume", "no-such:/data")
    assert (done.code, done.err.splitlines()[0]) == (1, "error: there is no volume 'no-such' (VOLUME_NOT_FOUND)")


def test_a_disk_limit_is_kept(skerry: Skerry, nothing_left: None) -> None:
    done = skerry("run", "--disk", "20MB", "--", "sh", "-c", "head -c 40000000 /dev/zero > big")
    assert done.code != 0
    assert "quota exceeded" in done.err.lower()
    assert "(QUOTA_EXCEEDED)" in skerry("run", "--disk", "100TB", "--", "true").err
    assert "(INVALID_ARGUMENT)" in skerry("run", "--disk", "1kB", "--", "true").err


def test_storage_is_shown_and_unmounted_when_nobody_uses_it(skerry: Skerry, tmp_path: Path) -> None:
    env = {"SKERRY_HOME": str(tmp_path / "home"), "SKERRY_POOL_SIZE": "400MB"}
    try:
        shown = skerry("storage", "show", "-o", "json", env=env).json
        assert (shown["kind"], shown["home"], shown["limits"]) == ("pool", env["SKERRY_HOME"], True)
        assert shown["image"] == f"{env['SKERRY_HOME']}/pool.img"
        assert 0 < shown["used"] < shown["size"] <= 400_000_000
        text = skerry("storage", "show", env=env).text
        assert [line.split(":")[0] for line in text.splitlines()] == (
            "kind home image size used free limits sandboxes snapshots volumes encrypted".split()
        )
        sandbox = skerry("create", env=env).text.strip()
        refused = skerry("storage", "unmount", env=env)
        assert (refused.code, sandbox in refused.err, "(CONFLICT)" in refused.err) == (1, True, True)
        skerry("rm", sandbox, env=env)
        assert skerry("storage", "unmount", "-o", "json", env=env).json == {"unmounted": True}
        assert not os.path.ismount(tmp_path / "home/pool")
        assert skerry("storage", "unmount", env=env).err == "the pool was not mounted\n"
        assert skerry("ps", env=env).code == 0
    finally:
        unmount_below(tmp_path)


def test_storage_of_plain_directories_has_nothing_to_unmount(skerry: Skerry, tmp_path: Path) -> None:
    env = {"SKERRY_HOME": str(tmp_path / "home"), "SKERRY_STORAGE": "directory"}
    assert skerry("storage", "show", "-o", "json", env=env).json["image"] is None
    assert "(UNSUPPORTED)" in skerry("storage", "unmount", env=env).err
    doctor = skerry("doctor", env=env)
    assert doctor.code == 0
    assert "no       storage: plain directories" in doctor.text


def test_completion_knows_groups_and_volumes(skerry: Skerry, volume: str) -> None:
    from skerry.cli.completion.candidates import candidates
    from skerry.cli.program import app

    assert [way.text for way in candidates(app, ["volume", ""])] == ["create", "ls", "show", "rm"]
    assert volume in [way.text for way in candidates(app, ["volume", "rm", ""])]
    assert "--size" in [way.text for way in candidates(app, ["volume", "create", "--"])]


def test_options_of_a_mount_are_read() -> None:
    [first, second, third] = parse_volumes(["a:/a:size=5GB,temporary", "b:/b:sub:ro,persistent", "c:/c:existing"])
    assert (first.subpath, first.size, first.persistent) == ("", "5GB", False)
    assert (second.subpath, second.read_only, second.persistent) == ("sub", True, True)
    assert third == VolumeMount(name="c", path="/c", mount_existing=True)
    assert parse_volumes(["d:/d:size"])[0].subpath == "size"
