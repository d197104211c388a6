"""What is known of a sandbox that somebody else has made, and what copies of it are made with."""

from __future__ import annotations

import dataclasses

from skerry import Sandbox, Volumes
from skerry.core.models import SandboxSpec, VolumeMount
from skerry.sdk.listing import NOT_TOLD, spec_of
from skerry.sdk.state.clone import copy_spec

NOT_COPIED = {"name", "user", "workdir"}
"""A copy has a name of its own; user and working directory are in what it begins with."""


def test_nothing_that_a_sandbox_was_created_with_is_forgotten() -> None:
    """Every field of a spec is told by the info, or is named as one that is not; a copy is asked for with all of it."""
    volume = Volumes().create("not-forgotten", temporary=True)
    asked = {
        "name": "not-forgotten",
        "metadata": {"m": "1"},
        "labels": {"l": "1"},
        "timeout": 500.0,
        "on_timeout": "destroy",
        "auto_stop": 100.0,
        "auto_archive": 200.0,
        "auto_delete": 300.0,
        "purpose": "preview",
        "resources": {"cpu": 1.0, "memory": 200_000_000, "pids": 99},
        "volumes": [VolumeMount(name=volume.name, path="/data")],
        "network": "open",
        "user": "root",
        "workdir": "/tmp",
        "isolation": "container",
        "encrypted": False,
        "instructions": "Work in /tmp.",
    }
    fields = {field.name for field in dataclasses.fields(SandboxSpec)}
    assert fields - NOT_TOLD - asked.keys() == {"template"}
    with Sandbox.create(**asked) as sandbox:  # type: ignore[arg-type]
        found = Sandbox.get(sandbox.id)
        told = spec_of(found.info())
        assert told == dataclasses.replace(sandbox.config, **_untold())
        copied = copy_spec(found.info(), None, {})
        same = fields - NOT_TOLD - NOT_COPIED - {"timeout"}
        assert {name: getattr(copied, name) for name in same} == {name: getattr(told, name) for name in same}
        assert abs(copied.timeout - 500) < 5
        found.close()


def _untold() -> dict[str, object]:
    default = SandboxSpec()
    return {name: getattr(default, name) for name in NOT_TOLD}
