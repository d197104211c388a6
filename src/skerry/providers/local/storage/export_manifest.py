"""The manifest of an exported state, and the checks on it when it is imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import cast, get_args

from skerry._model import Model
from skerry.archive import JSON, Manifest
from skerry.core import Corrupted, InvalidArgument, OnTimeout, Resources
from skerry.providers.local.sandbox.archive import COLD

KIND = "state"
"""The kind of a file with every layer above the template."""
_MAX_TEXT = 4096
_MAX_VALUE = 128 * 1024
_MAX_ITEMS = 4096
_MAX_NUMBER = 2**63


class StateFile(Model):
    """Everything about a sandbox that is in the file besides its files. Secrets are not."""

    skerry: str
    """The version that wrote it."""
    source: str
    """The id of the sandbox or snapshot."""
    source_kind: str
    """`sandbox` or `snapshot`."""
    created_at: float
    template: str
    user: str
    workdir: str
    env: dict[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    """The limits that were chosen; for the others the importing side has its defaults."""
    ports: tuple[int, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    on_timeout: OnTimeout | None = None
    """As the caller chose it; None also in a file that is older than the choice."""

    def data(self) -> dict[str, JSON]:
        found: dict[str, JSON] = dataclasses.asdict(self)
        return {**found, "ports": list(self.ports)}


def parse(manifest: Manifest) -> StateFile:
    """Raises InvalidArgument for an archive of another kind, Corrupted for one that makes no sense."""
    if manifest.kind == COLD:
        raise InvalidArgument(
            "this file is the cold archive of a sandbox, which only that sandbox can use",
            hint="start the sandbox, then export it",
        )
    if manifest.kind != KIND:
        raise InvalidArgument(f"this file is an archive of another kind: {manifest.kind[:50]!r}")
    if manifest.layers < 1:
        raise Corrupted("the file has no layer")
    data = manifest.data
    return StateFile(
        skerry=_text(data, "skerry"),
        source=_text(data, "source"),
        source_kind=_text(data, "source_kind"),
        created_at=_number(data, "created_at"),
        template=_text(data, "template"),
        user=_text(data, "user"),
        workdir=_path(data, "workdir"),
        env=_env(data),
        resources=_resources(data),
        ports=_ports(data),
        metadata=_pairs(data, "metadata"),
        labels=_pairs(data, "labels"),
        on_timeout=_on_timeout(data),
    )


def _wrong(what: str) -> Corrupted:
    return Corrupted(f"the manifest of the file is damaged: it has no usable {what}")


def _text(data: Mapping[str, JSON], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value or "\0" in value or len(value) > _MAX_TEXT or not _is_text(value):
        raise _wrong(name)
    return value


def _is_text(value: str) -> bool:
    """Whether the text can be encoded: JSON allows halves of characters, which no variable and no path can have."""
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _path(data: Mapping[str, JSON], name: str) -> str:
    value = _text(data, name)
    if not value.startswith("/"):
        raise _wrong(name)
    return value


def _number(data: Mapping[str, JSON], name: str) -> float:
    value = data.get(name)
    if type(value) not in (int, float) or not isinstance(value, int | float) or not abs(value) < _MAX_NUMBER:
        raise _wrong(name)
    return float(value)


def _pairs(data: Mapping[str, JSON], name: str) -> dict[str, str]:
    value = data.get(name)
    if not isinstance(value, dict) or len(value) > _MAX_ITEMS:
        raise _wrong(name)
    pairs: dict[str, str] = {}
    for key, text in value.items():
        if not key or not isinstance(text, str) or len(key) > _MAX_TEXT or len(text) > _MAX_VALUE:
            raise _wrong(name)
        if not _is_text(key) or not _is_text(text):
            raise _wrong(name)
        pairs[key] = text
    return pairs


def _env(data: Mapping[str, JSON]) -> dict[str, str]:
    env = _pairs(data, "env")
    for name, value in env.items():
        if "=" in name or "\0" in name + value:
            raise _wrong("env")
    return env


def _resources(data: Mapping[str, JSON]) -> Resources:
    value = data.get("resources")
    if not isinstance(value, dict):
        raise _wrong("resources")
    cpu = None if value.get("cpu") is None else _number(value, "cpu")
    if cpu is not None and cpu <= 0:
        raise _wrong("resources")
    return Resources(
        cpu=cpu,
        memory=_amount(value, "memory"),
        disk=_amount(value, "disk"),
        pids=_amount(value, "pids"),
    )


def _amount(resources: Mapping[str, JSON], name: str) -> int | None:
    value = resources.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 < value < _MAX_NUMBER:
        raise _wrong("resources")
    return value


def _on_timeout(data: Mapping[str, JSON]) -> OnTimeout | None:
    value = data.get("on_timeout")
    for known in get_args(OnTimeout):
        if value == known:
            return cast(OnTimeout, known)
    if value is not None:
        raise _wrong("on_timeout")
    return None


def _ports(data: Mapping[str, JSON]) -> tuple[int, ...]:
    value = data.get("ports")
    if not isinstance(value, list) or len(value) > _MAX_ITEMS:
        raise _wrong("ports")
    ports = []
    for port in value:
        if type(port) is not int or not 0 < port < 65536:
            raise _wrong("ports")
        ports.append(port)
    return tuple(ports)
