"""Providers by name."""

from __future__ import annotations

from importlib.metadata import distribution

from skerry.core import registry


def test_the_built_in_providers_are_the_entry_points_of_this_distribution() -> None:
    named = {entry.name: entry.value for entry in distribution("skerry").entry_points if entry.group == registry.GROUP}
    assert named == {name: ":".join(where) for name, where in registry.BUILT_IN.items()}
    assert set(named) <= set(registry.names())
