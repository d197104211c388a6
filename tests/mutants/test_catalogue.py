"""The mutants still fit the code; whether they are caught is for `make mutants` to say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


def test_there_are_at_least_25_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25


def test_agent_wire_provider_and_sdk_all_have_some() -> None:
    places = ("agent/", "src/skerry/wire/", "src/skerry/providers/", "src/skerry/sdk/", "launcher/")
    assert all(any(mutant.file.startswith(place) for mutant in MUTANTS) for place in places)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_fits_the_code_and_its_test_exists(mutant: Mutant) -> None:
    assert mutant.old != mutant.new
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    file, _, name = mutant.test.partition("::")
    wanted = name.split("::")[-1].partition("[")[0]
    tree = ast.parse((ROOT / file).read_text())
    assert wanted in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
