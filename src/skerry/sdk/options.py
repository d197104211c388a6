"""The options of `create`, checked before anything happens."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Literal, cast, get_args

from skerry.core import (
    NAME,
    InvalidArgument,
    Limits,
    OnTimeout,
    QuotaExceeded,
    Resources,
    SandboxSpec,
    Unsupported,
    VolumeInfo,
    VolumeMount,
    check_least,
    check_most,
    check_mounts,
    check_seconds,
    limits,
    parse_size,
)
from skerry.sdk.commands.request import check_user, check_whole, encode_env, encode_path

Network = Literal["none", "open"]
ResourceOptions = Resources | Mapping[str, float | int | str | None]
"""Limits by name: cpu (cores), memory and disk (bytes, or text such as "2GB"), pids, gpu."""

VolumeOptions = Mapping[str, str | VolumeInfo | VolumeMount] | Iterable[VolumeMount]
"""Volumes by the path they are mounted at, or mounts that say their paths themselves."""

MAX_PAIRS = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Idle:
    """After how many seconds without work a sandbox is stopped, archived, deleted; None: never."""

    stop: float | None
    archive: float | None
    delete: float | None


def check_idle(
    *,
    auto_stop: float | None,
    idle_timeout: float | None,
    auto_archive: float | None,
    auto_delete: float | None,
    keep_alive: bool | None,
) -> Idle:
    """Raises InvalidArgument."""
    if keep_alive is not None and not isinstance(keep_alive, bool):
        raise InvalidArgument(f"keep_alive must be True or False, not {keep_alive!r}")
    if auto_stop is not None and idle_timeout is not None:
        raise InvalidArgument("auto_stop and idle_timeout are the same: give one of them")
    given = {
        "auto_stop": auto_stop,
        "idle_timeout": idle_timeout,
        "auto_archive": auto_archive,
        "auto_delete": auto_delete,
    }
    found = {name: check_seconds(value, name) for name, value in given.items() if value is not None}
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


def build_spec(
    *,
    name: str | None,
    env: Mapping[str, str] | None,
    secrets: Mapping[str, str] | None,
    metadata: Mapping[str, str] | None,
    labels: Mapping[str, str] | None,
    timeout: float | None,
    on_timeout: OnTimeout | None,
    idle: Idle,
    purpose: str,
    resources: ResourceOptions | None,
    volumes: VolumeOptions | None,
    network: str,
    user: str | None,
    workdir: str | PurePosixPath | None,
    idempotency_key: str | None,
    isolation: str | None,
    unsupported: Mapping[str, object],
) -> SandboxSpec:
    """Raises Unsupported, InvalidArgument or QuotaExceeded. `unsupported` has the options that do not exist yet."""
    for option, value in unsupported.items():
        if value is not None:
            raise Unsupported(f"{option} is not supported yet", option=option)
    if network not in ("none", "open"):
        raise Unsupported(f"there is no network policy {network!r} yet, only 'none' and 'open'", option="network")
    bounds = limits()
    encode_env(env or {})
    spec = SandboxSpec(
        name=check_name(name),
        env=dict(env or {}),
        secrets=check_secrets(secrets, env),
        auto_stop=idle.stop,
        auto_archive=idle.archive,
        auto_delete=idle.delete,
        metadata=check_pairs(metadata, "metadata"),
        labels=check_pairs(labels, "labels"),
        timeout=bounds.lifetime if timeout is None else check_lifetime(timeout, bounds),
        on_timeout=check_on_timeout(on_timeout),
        purpose=check_text(purpose, "purpose"),
        resources=check_resources(resources, bounds),
        volumes=check_volumes(volumes),
        network=cast(Network, network),
        idempotency_key=None if idempotency_key is None else check_text(idempotency_key, "idempotency_key"),
        isolation=None if isolation is None else check_text(isolation, "isolation"),
    )
    if user is not None:
        spec = dataclasses.replace(spec, user=check_user(user))
    if workdir is not None:
        spec = dataclasses.replace(spec, workdir=check_workdir(workdir))
    return spec


def refuse_encrypted(encrypted: bool) -> None:
    """Raises Unsupported: archives and exports are encrypted on request, live disks by no provider."""
    if encrypted:
        raise Unsupported(
            "the storage pool is not encrypted, so no live disk is",
            option="encrypted",
            hint="put SKERRY_HOME on an encrypted disk; exports and archives take a key",
        )


def check_name(name: object) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or not NAME.fullmatch(name) or name.startswith("sb-"):
        hint = "up to 63 of a-z 0-9 . _ - that begin with a letter or digit, and not with sb-"
        raise InvalidArgument(f"{name!r} is not a name for a sandbox", hint=hint)
    return name


def check_text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value or len(value) > 1024:
        raise InvalidArgument(f"{what} must be a short text, not {value!r}")
    return value


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


def check_lifetime(seconds: float, bounds: Limits | None = None) -> float:
    most = (bounds or limits()).max_lifetime
    if check_seconds(seconds) > most:
        raise QuotaExceeded(f"a lifetime of {seconds:g} s is above the maximum of {most:g} s")
    return float(seconds)


def check_on_timeout(on_timeout: object) -> OnTimeout | None:
    """Raises InvalidArgument."""
    if on_timeout is not None and on_timeout not in get_args(OnTimeout):
        raise InvalidArgument(
            f"on_timeout must be one of {', '.join(get_args(OnTimeout))}, not {on_timeout!r}",
            hint="leave it away: a sandbox with a name is stopped at its timeout, one without is destroyed",
        )
    return cast("OnTimeout | None", on_timeout)


def check_resources(resources: ResourceOptions | None, bounds: Limits | None = None) -> Resources:
    """Raises InvalidArgument for an unknown name or a value that is none, QuotaExceeded above a maximum."""
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
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(known)}"
            raise InvalidArgument(f"there is no resource {name!r}", hint=hint)
    if given.get("gpu") is not None:
        raise Unsupported("no provider offers GPUs yet", option="resources.gpu")
    cpu, memory, disk, pids = given.get("cpu"), given.get("memory"), given.get("disk"), given.get("pids")
    if isinstance(cpu, str):
        raise InvalidArgument(f"cpu must be a number of cores, not {cpu!r}")
    if isinstance(pids, str | float):
        raise InvalidArgument(f"pids must be a whole number, not {pids!r}")
    if isinstance(memory, float) or isinstance(disk, float):
        raise InvalidArgument("memory and disk must be bytes or text such as '2GB', not a fraction")
    wanted = Resources(
        cpu=None if cpu is None else _cores(cpu),
        memory=None if memory is None else parse_size(memory, "memory"),
        disk=None if disk is None else parse_size(disk, "disk"),
        pids=None if pids is None else check_whole(pids, "pids", least=1),
    )
    check_least(memory=wanted.memory, pids=wanted.pids)
    check_most(wanted, bounds)
    return wanted


def _cores(cpu: float) -> float:
    if type(cpu) not in (int, float) or not math.isfinite(cpu) or cpu <= 0:
        raise InvalidArgument(f"cpu must be a number of cores above 0, not {cpu!r}")
    return float(cpu)


def check_volumes(volumes: object) -> tuple[VolumeMount, ...]:
    """Raises InvalidArgument."""
    hint = "a mapping of paths to volumes' names, or a list of VolumeMount"
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
        raise InvalidArgument(f"{given!r} is not a volume", hint="its name, or a VolumeMount")
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
