"""Ids are made and told apart from names in one module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skerry.core import is_project_id, is_sandbox_id, is_snapshot_id, looks_like_id, new_sandbox_id, new_snapshot_id

SOURCE = Path(__file__).parents[2] / "src/skerry"


def test_a_new_id_is_read_as_what_it_is_and_fits_a_host_name() -> None:
    sandboxes, snapshots = {new_sandbox_id() for _ in range(500)}, {new_snapshot_id() for _ in range(500)}
    assert len(sandboxes) == len(snapshots) == 500
    assert all(is_sandbox_id(id) and not is_snapshot_id(id) for id in sandboxes)
    assert all(is_snapshot_id(id) and not is_sandbox_id(id) for id in snapshots)
    assert all(re.fullmatch(r"[a-z0-9-]{1,63}", f"65535-{id}") for id in sandboxes)


@pytest.mark.parametrize(
    "text", ["", "sb-", "sb-short", "sb-" + "a" * 41, "sb-UPPERCASE1", "sb-../../etc", "sb-abcdefgh\n", "xsb-abcdefgh"]
)
def test_what_only_resembles_an_id_is_none(text: str) -> None:
    assert not is_sandbox_id(text) and not is_snapshot_id(text) and not is_project_id(text)


def test_ids_of_another_maker_are_read() -> None:
    assert is_sandbox_id("sb-01234567") and is_sandbox_id("sb-" + "z9" * 20) and is_project_id("pj-0123456789abcdef")


def test_a_name_that_could_be_taken_for_an_id_is_known() -> None:
    assert looks_like_id("sb-x") and looks_like_id("sn-x") and not looks_like_id("sbx")


def test_no_other_module_spells_the_prefixes() -> None:
    spelled = re.compile(r"\b(sb|sn)-")
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 200
    assert [str(path) for path in modules if spelled.search(path.read_text())] == [str(SOURCE / "core/ids.py")]
