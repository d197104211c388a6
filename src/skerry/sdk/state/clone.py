"""Copies of a sandbox: one hidden snapshot, from which any number of them begin."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypedDict

import anyio

from skerry.core import (
    InvalidArgument,
    OnTimeout,
    Provider,
    Resources,
    SandboxInfo,
    SandboxNotFound,
    SandboxSpec,
    Seconds,
    SkerryError,
    check_lifetime,
    limits,
)
from skerry.sdk.commands.request import check_options, check_whole, encode_env
from skerry.sdk.listing import spec_of
from skerry.sdk.options import (
    ResourceOptions,
    check_name,
    check_on_timeout,
    check_pairs,
    check_resources,
)
from skerry.sdk.state.snapshots import LogCallback, require_snapshots

MOST_COPIES = 1000
SecretOptions = bool | Mapping[str, str]
"""Whether a copy gets the secrets of the source, or which secrets it gets instead."""


class CopyOptions(TypedDict, total=False):
    """What is different in a copy; everything else is as in the source."""

    env: Mapping[str, str] | None
    """Variables to add to those it has, or to change."""
    resources: ResourceOptions | None
    """Limits to change."""
    metadata: Mapping[str, str] | None
    """Replaces the source's."""
    labels: Mapping[str, str] | None
    """Replaces the source's."""
    timeout: Seconds | None
    """As for `create`."""
    on_timeout: OnTimeout | None
    """As for `create`."""
    secrets: SecretOptions
    """True: the secrets of the source; or other secrets. Without this option a copy has none."""


def copy_spec(source: SandboxInfo, name: str | None, changes: CopyOptions) -> SandboxSpec:
    """What to ask for, but for the snapshot: all that is known of the source, and what is to be different.

    Raises InvalidArgument, QuotaExceeded, Unsupported.
    """
    check_options("clone", changes, CopyOptions.__optional_keys__)
    bounds = limits()
    env, secrets, timeout = changes.get("env") or {}, changes.get("secrets", False), changes.get("timeout")
    metadata, labels = changes.get("metadata"), changes.get("labels")
    encode_env(env)
    if not isinstance(secrets, bool):
        encode_env(secrets)
    asked = check_on_timeout(changes.get("on_timeout"))
    return dataclasses.replace(
        spec_of(source),
        name=check_name(name),
        template=source.template,
        user=None,  # the snapshot has it
        workdir=None,
        env=dict(env),
        secrets={} if isinstance(secrets, bool) else dict(secrets),
        secrets_of=source.id if secrets is True else None,
        metadata=dict(source.metadata) if metadata is None else check_pairs(metadata, "metadata"),
        labels=dict(source.labels) if labels is None else check_pairs(labels, "labels"),
        timeout=_lifetime(source) if timeout is None else check_lifetime(timeout, bounds),
        on_timeout=source.on_timeout_asked if asked is None else asked,
        resources=_merge(source.resources, check_resources(changes.get("resources"), bounds)),
    )


def _lifetime(source: SandboxInfo) -> float:
    """As long as the source was given from its last start on; of one that does not run, from its next."""
    bounds = limits()
    given = source.timeout
    if source.expires_at is not None:
        given = source.expires_at - (source.started_at or source.created_at)
    return bounds.lifetime if given is None else max(1.0, min(bounds.max_lifetime, given))


def _merge(old: Resources, new: Resources) -> Resources:
    given = {name: value for name, value in dataclasses.asdict(new).items() if value is not None}
    return dataclasses.replace(old, **given)


def check_count(n: int) -> int:
    check_whole(n, "n", least=1)
    if n > MOST_COPIES:
        raise InvalidArgument(f"{n} copies at once are more than {MOST_COPIES}")
    return n


async def copy(
    provider: Provider, source: str, specs: Sequence[SandboxSpec], on_log: LogCallback | None
) -> list[SandboxInfo | SkerryError]:
    """Make a sandbox for each of `specs` from what `source` has now. Returns the outcome of each.

    If this is cancelled, none of them is left.
    """
    chosen = require_snapshots(provider, "clone")
    started = time.perf_counter()
    base = await chosen.create_snapshot(source, name=None, description="", hidden=True)
    made: dict[int, SandboxInfo | SkerryError] = {}

    async def make(number: int, spec: SandboxSpec) -> None:
        try:
            made[number] = await provider.create(dataclasses.replace(spec, snapshot=base.id))
        except SkerryError as error:
            made[number] = error
        if on_log is not None:
            on_log(f"{len(made)} of {len(specs)} copies of {source} after {time.perf_counter() - started:.3f} s")

    try:
        async with anyio.create_task_group() as group:
            for number, spec in enumerate(specs):
                group.start_soon(make, number, spec)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            for info in made.values():
                if not isinstance(info, SkerryError):
                    await _remove(provider, info.id, error)
        raise
    finally:
        # What was made counts: a hidden snapshot that stays is swept once this process has ended.
        with anyio.CancelScope(shield=True), suppress(SkerryError):
            await chosen.delete_snapshot(base.id)
    return [made[number] for number in range(len(specs))]


async def _remove(provider: Provider, sandbox_id: str, because: BaseException) -> None:
    try:
        await provider.destroy(sandbox_id)
    except SandboxNotFound:
        pass
    except SkerryError as left:
        because.add_note(f"the copy {sandbox_id} could not be removed: {left}")
