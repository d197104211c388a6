"""Models become JSON and come back; what is not such a model is refused with the place of the mistake."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from skerry._model import Model
from skerry.core import InvalidArgument, NewerVersion, Resources, SandboxSpec, VolumeMount, dump_json, from_plain, plain
from skerry.core.json import load_json, read_record


class Tree(Model):
    name: bytes
    children: tuple[Tree, ...] = ()


@dataclasses.dataclass(frozen=True)
class Given:
    spec: SandboxSpec
    seconds: float | None = None


TREE = Tree(name=b"\xff", children=(Tree(name=b"a"),))
GIVEN = Given(SandboxSpec(env={"A": "\udcff"}, volumes=(VolumeMount(name="v", path="/v"),)), 2.5)


@pytest.mark.parametrize("value", [TREE, GIVEN])
def test_models_and_dataclasses_come_back(value: Any) -> None:
    assert from_plain(type(value), load_json(dump_json(value))) == value


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (Given, '{"spec": {"timeout": "1"}}', "spec.timeout must be a number, not str"),
        (Given, '{"spec": {"volumes": [{"name": "v", "path": 7}]}}', r"spec.volumes\[0\].path must be text, not int"),
        (Given, '{"spec": {"env": {"A": null}}}', r"spec.env\['A'\] must be text, not NoneType"),
        (Given, '{"spec": {"resources": {"cpus": 2}}}', "spec.resources has no 'cpus'"),
        (Given, '{"spec": {"volumes": [{"name": "v"}]}}', r"spec.volumes\[0\] needs 'path'"),
        (Given, "{}", "Given needs 'spec'"),
        (Tree, '{"name": "YQ==", "children": [{"name": "!"}]}', r"children\[0\].name is not valid base64"),
    ],
)
def test_a_mistake_is_said_with_its_place(kind: type, text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{message}$"):
        from_plain(kind, load_json(text))


def test_a_record_has_a_version() -> None:
    data = {"version": 2, **plain(Resources(cpu=1.0))}
    assert read_record(Resources, json.dumps(data).encode(), (1, 2)) == Resources(cpu=1.0)
    with pytest.raises(NewerVersion, match="record version 2"):
        read_record(Resources, json.dumps(data).encode(), (1,))
    for text in (b"", b"[]", b"{}", b'{"version": "2"}', b'{"version": 2, "cpu": "1"}', b'{"version": 2, "later": 1}'):
        with pytest.raises(InvalidArgument):
            read_record(Resources, text, (1, 2))
