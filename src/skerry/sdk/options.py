"""The options of `create`, checked before anything happens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Literal, TypedDict, Unpack, cast, get_args

from skerry._model import Model
from skerry.core import (
    NAME,
    RESERVED_HINT,
    InvalidArgument,
    Limits,
    OnTimeout,
    Provider,
    Resources,
    SandboxSpec,
    Seconds,
    Unsupported,
    VolumeInfo,
    VolumeMount,
    check_cores,
    check_least,
    check_lifetime,
    check_most,
    check_mounts,
    check_seconds,
    did_you_mean,
    limits,
    looks_like_id,
    parse_size,
)
from skerry.sdk.commands.request import SandboxPath, check_user, check_whole, encode_env, encode_path

Network = Literal["none", "open"]
ResourceOptions = Resources | Mapping[str, float | int | str | None]
"""Limits by name: cpu (cores), memory and disk (bytes, or text such as "2GB"), pids, gpu."""

VolumeOptions = Mapping[str, str | VolumeInfo | VolumeMount] | Iterable[VolumeMount]
"""Volumes by the path they are mounted at, or mounts that say their paths themselves."""

MAX_PAIRS = 256
MAX_INSTRUCTIONS = 32_768


class SpecOptions(TypedDict, total=False):
    """The options of `create` that say what a sandbox is; a provider is asked for a `SandboxSpec` made of them."""

    name: str | None
    """Unique among your sandboxes."""
    env: Mapping[str, str] | None
    """Variables that every command gets."""
    secrets: Mapping[str, str] | None
    """Variables as `env`, but of this sandbox alone: no copy, snapshot or export has them."""
    metadata: Mapping[str, str] | None
    """Your own notes, which `list` can select by."""
    labels: Mapping[str, str] | None
    """The same as `metadata`, for programs."""
    timeout: Seconds | None
    """The longest time it runs from its last start: seconds, or text such as "2h"."""
    on_timeout: OnTimeout | None
    """What happens then: "stop" keeps its files, and the next call or `start` begins a new `timeout`; "destroy" removes
    it; "pause" freezes it, where the provider can. None: a sandbox with a name is stopped, one without is destroyed."""
    auto_stop: Seconds | None
    """Stop it after this many seconds without work in it."""
    idle_timeout: Seconds | None
    """The same as `auto_stop`."""
    auto_archive: Seconds | None
    """Archive it after this many seconds without work, counted from the same moment as `auto_stop`."""
    auto_delete: Seconds | None
    """Destroy it after this many seconds without work, counted from the same moment as `auto_stop`."""
    keep_alive: bool | None
    """True: the sandbox is never stopped, archived or destroyed for lack of work."""
    purpose: str
    """What it is for: "development" unless given."""
    resources: ResourceOptions | None
    """Limits: cpu, memory, disk, pids."""
    volumes: VolumeOptions | None
    """Volumes that exist, by the path they are mounted at, or a list of `VolumeMount`."""
    network: str
    """Either "none" or "open", which reaches public addresses."""
    user: str | None
    """The user that commands run as."""
    workdir: SandboxPath | None
    """The directory that commands run in. A missing one is made and belongs to the user."""
    idempotency_key: str | None
    """The same call again with the same key returns the same sandbox."""
    isolation: str | None
    """The isolation level that the provider must have."""
    encrypted: bool | None
    """True: what the sandbox writes is encrypted on disk, and so are its snapshots, clones and archives; raises
    Unsupported where the provider cannot. None: as the snapshot it begins with, else not."""


class Idle(Model, kw_only=False):
    """After how many seconds without work a sandbox is stopped, archived, deleted; None: never."""

    stop: float | None
    archive: float | None
    delete: float | None


def check_idle(given: SpecOptions) -> Idle:
    """Raises InvalidArgument."""
    keep_alive = check_flag(given.get("keep_alive"), "keep_alive")
    if given.get("auto_stop") is not None and given.get("idle_timeout") is not None:
        raise InvalidArgument("auto_stop and idle_timeout are the same: give one of them")
    times = {
        "auto_stop": given.get("auto_stop"),
        "idle_timeout": given.get("idle_timeout"),
        "auto_archive": given.get("auto_archive"),
        "auto_delete": given.get("auto_delete"),
    }
    found = {name: check_seconds(value, name) for name, value in times.items() if value is not None}
    if keep_alive and found:
        raise InvalidArgument(f"keep_alive and {next(iter(found))} contradict each other")
    stop = found.get("auto_stop", found.get("idle_timeout"))
    return Idle(stop, found.get("auto_archive"), found.get("auto_delete"))


def check_secrets(secrets: Mapping[str, str] | None, env: Mapping[str, str] | None) -> dict[str, str]:
    """Raises InvalidArgument; no value is in its message."""
    encode_env(secrets or {})
    if twice := (secrets or {}).keys() & (env or {}).keys():
        raise InvalidArgument(f"{min(twice)} is given as env and as a secret")
    return dict(secrets or {})


def build_spec(**given: Unpack[SpecOptions]) -> SandboxSpec:
    """What to ask a provider for. Raises Unsupported, InvalidArgument or QuotaExceeded."""
    network = given.get("network", "none")
    if network not in ("none", "open"):
        raise Unsupported(f"there is no network policy {network!r} yet, only 'none' and 'open'", option="network")
    bounds = limits()
    env, timeout = given.get("env") or {}, given.get("timeout")
    encode_env(env)
    idle = check_idle(given)
    key, isolation, user, workdir = (
        given.get("idempotency_key"),
        given.get("isolation"),
        given.get("user"),
        given.get("workdir"),
    )
    spec = SandboxSpec(
        name=check_name(given.get("name")),
        env=dict(env),
        secrets=check_secrets(given.get("secrets"), env),
        auto_stop=idle.stop,
        auto_archive=idle.archive,
        auto_delete=idle.delete,
        metadata=check_pairs(given.get("metadata"), "metadata"),
        labels=check_pairs(given.get("labels"), "labels"),
        timeout=bounds.lifetime if timeout is None else check_lifetime(timeout, bounds),
        on_timeout=check_on_timeout(given.get("on_timeout")),
        purpose=check_text(given.get("purpose", "development"), "purpose"),
        resources=check_resources(given.get("resources"), bounds),
        volumes=check_volumes(given.get("volumes")),
        network=cast(Network, network),
        idempotency_key=None if key is None else check_text(key, "idempotency_key"),
        isolation=None if isolation is None else check_text(isolation, "isolation"),
        encrypted=check_flag(given.get("encrypted"), "encrypted"),
    )
    if user is not None:
        spec = dataclasses.replace(spec, user=check_user(user))
    if workdir is not None:
        spec = dataclasses.replace(spec, workdir=check_workdir(workdir))
    return spec


def check_flag(value: object, what: str) -> bool | None:
    """Raises InvalidArgument."""
    if value is not None and not isinstance(value, bool):
        raise InvalidArgument(f"{what} must be True or False, not {value!r}")
    return value


def check_encrypted(provider: Provider, encrypted: bool | None) -> None:
    """Raises Unsupported for an encryption that `provider` never has."""
    if encrypted and not provider.encrypts:
        raise Unsupported(
            f"the provider {provider.name!r} does not encrypt disks",
            option="encrypted",
            providers=("local",),
            hint="exports and archives take a key",
        )


def check_name(name: object) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or not NAME.fullmatch(name) or looks_like_id(name):
        hint = f"use up to 63 of a-z 0-9 . _ - and begin with a letter or digit, but not with {RESERVED_HINT}"
        raise InvalidArgument(f"{name!r} is not a name for a sandbox", hint=hint)
    return name


def check_text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value or len(value) > 1024:
        raise InvalidArgument(f"{what} must be a short text, not {value!r}")
    return value


def check_instructions(text: object) -> str | None:
    """Raises InvalidArgument."""
    if text is not None and not isinstance(text, str):
        raise InvalidArgument(f"instructions must be text or a function, not {type(text).__name__}")
    if text is not None and ("\0" in text or len(text) > MAX_INSTRUCTIONS):
        raise InvalidArgument(f"instructions must be a text of at most {MAX_INSTRUCTIONS:,} characters without NUL")
    return text


def check_pairs(pairs: object, what: str) -> dict[str, str]:
    if pairs is None:
        return {}
    if not isinstance(pairs, Mapping):
        raise InvalidArgument(f"{what} must be a mapping of text to text, not {type(pairs).__name__}")
    for key, value in pairs.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            raise InvalidArgument(f"{what} must map text to text: {key!r} does not")
    if len(pairs) > MAX_PAIRS:
        raise InvalidArgument(f"{what} has {len(pairs)} entries, more than {MAX_PAIRS}")
    return dict(pairs)


def check_workdir(workdir: str | PurePosixPath) -> str:
    encode_path(workdir, "workdir")
    if not str(workdir).startswith("/"):
        raise InvalidArgument(f"workdir must be an absolute path, not {str(workdir)!r}")
    return str(workdir)


def check_on_timeout(on_timeout: object) -> OnTimeout | None:
    """Raises InvalidArgument."""
    if on_timeout is not None and on_timeout not in get_args(OnTimeout):
        raise InvalidArgument(
            f"on_timeout must be one of {', '.join(get_args(OnTimeout))}, not {on_timeout!r}",
            hint="leave it out: a sandbox with a name is stopped at its timeout, one without is destroyed",
        )
    return cast("OnTimeout | None", on_timeout)


def check_resources(resources: ResourceOptions | None, bounds: Limits | None = None) -> Resources:
    """Raises InvalidArgument for an unknown name or an invalid value, QuotaExceeded above a maximum."""
    bounds = bounds or limits()
    if resources is None:
        return Resources()
    if isinstance(resources, Resources):
        given: Mapping[str, float | int | str | None] = dataclasses.asdict(resources)
    elif isinstance(resources, Mapping):
        given = resources
    else:
        raise InvalidArgument(f"resources must be Resources or a mapping, not {type(resources).__name__}")
    known = [field.name for field in dataclasses.fields(Resources)]
    for name in given:
        if name not in known:
            hint = did_you_mean(str(name), known, f"use one of {', '.join(known)}")
            raise InvalidArgument(f"there is no resource {name!r}", hint=hint)
    if given.get("gpu") is not None:
        hint = "leave it out: the template 'pytorch' computes on the CPU"
        raise Unsupported("no provider has GPUs yet", option="resources.gpu", hint=hint)
    cpu, memory, disk, pids = given.get("cpu"), given.get("memory"), given.get("disk"), given.get("pids")
    if isinstance(cpu, str):
        raise InvalidArgument(f"cpu must be a number of cores, not {cpu!r}")
    if isinstance(pids, str | float):
        raise InvalidArgument(f"pids must be a whole number, not {pids!r}")
    if isinstance(memory, float) or isinstance(disk, float):
        raise InvalidArgument("memory and disk must be bytes or text such as '2GB', not a fraction")
    wanted = Resources(
        cpu=None if cpu is None else check_cores(cpu),
        memory=None if memory is None else parse_size(memory, "memory"),
        disk=None if disk is None else parse_size(disk, "disk"),
        pids=None if pids is None else check_whole(pids, "pids", least=1),
    )
    check_least(memory=wanted.memory, pids=wanted.pids)
    check_most(wanted, bounds)
    return wanted


def check_volumes(volumes: object) -> tuple[VolumeMount, ...]:
    """Raises InvalidArgument."""
    hint = "give a mapping of paths to volumes' names, or a list of VolumeMount"
    if volumes is None:
        return ()
    if isinstance(volumes, Mapping):
        return check_mounts([_at(path, given) for path, given in volumes.items()])
    if not isinstance(volumes, Iterable) or isinstance(volumes, str | bytes):
        raise InvalidArgument(f"volumes must be a mapping or a list, not {type(volumes).__name__}", hint=hint)
    mounts = list(volumes)
    for mount in mounts:
        if not isinstance(mount, VolumeMount):
            raise InvalidArgument(f"{mount!r} is not a VolumeMount", hint=hint)
    return check_mounts(mounts)


def _at(path: str, given: object) -> VolumeMount:
    if isinstance(given, VolumeMount):
        if given.path != path:
            raise InvalidArgument(f"a volume is to be mounted at {path!r} and at {given.path!r}")
        return given
    if isinstance(given, VolumeInfo):
        return VolumeMount(name=given.name, path=path)
    if not isinstance(given, str):
        raise InvalidArgument(f"{given!r} is not a volume", hint="give its name, or a VolumeMount")
    return VolumeMount(name=given, path=path)


def check_limits(
    *,
    cpu: float | None,
    cpu_percent: float | None,
    memory: int | str | None,
    disk: int | str | None,
    pids: int | None,
) -> Resources:
    """New limits for a sandbox that runs; 100 `cpu_percent` are one core. Raises as `check_resources` does."""
    if cpu is not None and cpu_percent is not None:
        raise InvalidArgument("give cpu or cpu_percent, not both")
    if cpu_percent is not None:
        cpu = cpu_percent / 100
    limits = check_resources({"cpu": cpu, "memory": memory, "disk": disk, "pids": pids})
    if limits == Resources():
        raise InvalidArgument("no limit is given")
    return limits
