"""Making a sandbox: the options of `create`, and the way from them to a sandbox that is ready."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict, TypeVar, cast

import anyio

from skerry.core import (
    InvalidArgument,
    Leases,
    Provider,
    SandboxInfo,
    SandboxSpec,
    TemplateNotFound,
    Unsupported,
    registry,
)
from skerry.core import Volumes as VolumeProvider
from skerry.sdk.commands.request import TextCallback, check_options
from skerry.sdk.events import EventCallback, check_callback
from skerry.sdk.log import log
from skerry.sdk.options import SpecOptions, build_spec, check_encrypted, check_instructions
from skerry.sdk.state import lifecycle

if TYPE_CHECKING:
    from skerry.core import BuiltTemplate
    from skerry.sdk.instructions import Instructions
    from skerry.sdk.sandbox import AsyncSandbox
    from skerry.sdk.state.export import KeyOptions, StateSource
    from skerry.sdk.state.snapshots import SnapshotName
    from skerry.sdk.templates.builder import ProgressCallback
    from skerry.sdk.templates.images import ImageOption
    from skerry.sdk.templates.sources import Source, SourceOption
    from skerry.sdk.templates.templates import TemplateOption

S = TypeVar("S", bound="AsyncSandbox")


class BeginningOptions(TypedDict, total=False):
    """What a sandbox begins with."""

    template: TemplateOption | None
    """The name of a template, or a Template; `host` unless given. A template that is not built is built first."""
    image: ImageOption | None
    """Instead of a template: the path of an OCI or `docker save` archive, or `docker://NAME:TAG` in a registry."""
    language: str | None
    """The template for a language, such as "python"."""
    runtime: str | None
    """The template for a runtime, such as "node22"."""


class CreateOptions(SpecOptions, BeginningOptions, total=False):
    """Every option of `create`."""

    snapshot: SnapshotName | None
    """Begin with this snapshot's template, files, variables, user and working directory."""
    restore_from: SnapshotName | None
    """The same as `snapshot`."""
    import_state: StateSource | None
    """A path, bytes or a binary stream with what `export_state` wrote. Options given here override what is in it."""
    key: KeyOptions | None
    """The key that `import_state` is encrypted with."""
    source: SourceOption | None
    """A git repository or a tar archive that fills the working directory."""
    instructions: Instructions | None
    """The text that `instructions()` gives, which stays with the sandbox, or a function that makes it: only this object
    has that, and another one of the same sandbox gives the default text."""
    auto_start: bool
    """False: a call on a sandbox that is stopped or paused raises SandboxStopped instead of starting it."""
    on_event: EventCallback | None
    """Gets every event from `created` on."""
    build: bool
    """False: a template that is not built is refused instead of built, which can take minutes."""
    on_log: TextCallback | None
    """Gets what the steps of a build write."""
    on_progress: ProgressCallback | None
    """Gets each step of a build. Without this and `on_log`, a line on a terminal shows them."""
    ports: object
    """Not supported yet: anything but None raises Unsupported."""
    region: object
    """Not supported yet: anything but None raises Unsupported."""
    target: object
    """Not supported yet: anything but None raises Unsupported."""
    options: object
    """Not supported yet: anything but None raises Unsupported."""


DEFAULTS: Mapping[str, object] = {
    "purpose": "development",
    "network": "none",
    "auto_start": True,
    "build": True,
}
"""The defaults of options; None for an option that is not here."""
UNSUPPORTED = ("ports", "region", "target", "options")
_BEGINNING = BeginningOptions.__optional_keys__
_SPEC = SpecOptions.__optional_keys__


async def make_sandbox(cls: type[S], provider: str | Provider | None, given: CreateOptions) -> S:
    """The steps of `create`: check everything, find what the sandbox begins with, make it, prepare it."""
    started = time.perf_counter()
    spec, origin = _check(given)
    given = cast(CreateOptions, {**DEFAULTS, **given})
    if origin is not None and spec.idempotency_key is not None:
        from skerry.sdk.templates.sources import source_digest

        spec = dataclasses.replace(spec, source=await anyio.to_thread.run_sync(source_digest, origin))
    chosen = registry.provider(provider)
    template = next((given[name] for name in _BEGINNING if given.get(name)), None)  # type: ignore[literal-required]
    snapshot = _beginning(given.get("snapshot"), given.get("restore_from"), template)
    if snapshot is not None:
        from skerry.sdk.state.snapshots import find, require_snapshots

        found = await find(require_snapshots(chosen, "snapshot"), snapshot)
        spec = dataclasses.replace(spec, snapshot=found.id)
    if spec.volumes and not isinstance(chosen, VolumeProvider):
        raise Unsupported(f"the provider {chosen.name!r} has no volumes", option="volumes")
    check_encrypted(chosen, spec.encrypted)
    lifecycle.check_timeout(chosen, spec)
    lifecycle.check_inactivity(chosen, spec)
    info, spec, built = await _make(chosen, spec, origin, given)
    sandbox = cls(chosen, info, spec, auto_start=given["auto_start"], owned=True)
    if spec.workdir is not None:
        from skerry.sdk.templates.setup import make_workdir

        await make_workdir(sandbox)
    if _needs_preparation(built, origin) and not info.prepared:
        from skerry.sdk.templates.setup import prepare

        await prepare(sandbox, built, origin, given.get("on_log"))
    if spec.snapshot is not None or given.get("import_state") is not None:
        await sandbox._serve()
    sandbox._instructions = given.get("instructions")
    log.info("created %s", info.id, extra=sandbox._link.fields("create", started))
    if (on_event := given.get("on_event")) is not None:
        sandbox.on("*", on_event)
    return sandbox


def _check(given: CreateOptions) -> tuple[SandboxSpec, Source | None]:
    """What to ask the provider for, and what fills the working directory. Nothing is done yet."""
    check_options("create", given, CreateOptions.__optional_keys__)
    check_callback(given.get("on_event"), "on_event")
    _check_import(given.get("import_state"), given.get("key"), given.get("snapshot"), given.get("restore_from"))
    origin = None
    if (source := given.get("source")) is not None:
        from skerry.sdk.templates.sources import check_source

        origin = check_source(source, given.get("network", "none"))
    for name in UNSUPPORTED:
        if given.get(name) is not None:
            raise Unsupported(f"{name} is not supported yet", option=name)
    spec: SpecOptions = {name: value for name, value in given.items() if name in _SPEC}  # type: ignore[assignment]
    return dataclasses.replace(build_spec(**spec), instructions=_instructions(given.get("instructions"))), origin


async def _make(
    provider: Provider, asked: SandboxSpec, origin: Source | None, given: CreateOptions
) -> tuple[SandboxInfo, SandboxSpec, BuiltTemplate | None]:
    """Make the sandbox from its template. If the template is replaced or removed in between, look for it once more."""
    beginning: BeginningOptions = {  # type: ignore[assignment]
        name: value for name, value in given.items() if name in _BEGINNING
    }
    state = given.get("import_state")
    again = state is None
    while True:
        built, spec = None, asked
        if any(value is not None for value in beginning.values()):
            from skerry.sdk.templates.templates import based_on, resolve_template

            built = await resolve_template(
                provider,
                **beginning,
                build=given["build"],
                on_log=given.get("on_log"),
                on_progress=given.get("on_progress"),
            )
            spec = asked if built is None else based_on(asked, built)
        if _needs_preparation(built, origin):
            spec = dataclasses.replace(spec, leased=isinstance(provider, Leases))
        try:
            if state is None:
                return await provider.create(spec), spec, built
            from skerry.sdk.state.export import import_

            return await import_(provider, state, spec, given.get("key")), spec, built
        except TemplateNotFound:
            if built is None or not again:
                raise
            again = False


def _needs_preparation(built: BuiltTemplate | None, source: Source | None) -> bool:
    """Whether there is anything to do before a new sandbox is ready."""
    return source is not None or (built is not None and bool(built.post_create or built.post_start))


def _instructions(given: object) -> str | None:
    """The text that stays with the sandbox, if it is a text. Raises InvalidArgument."""
    return None if callable(given) else check_instructions(given)


def _check_import(source: object, key: object, *others: object) -> None:
    """Raises InvalidArgument for options that exclude each other."""
    if source is None and key is not None:
        raise InvalidArgument("a key is for import_state, which is not given")
    if source is not None and any(other is not None for other in others):
        raise InvalidArgument("give a snapshot or import_state, not both")


def _beginning(
    snapshot: SnapshotName | None, restore_from: SnapshotName | None, template: object
) -> SnapshotName | None:
    """What a new sandbox begins with, if that is a snapshot. Raises InvalidArgument."""
    if snapshot is not None and restore_from is not None:
        raise InvalidArgument("give snapshot or restore_from, not both: they are the same")
    begin = snapshot if snapshot is not None else restore_from
    if begin is not None and template is not None:
        raise InvalidArgument("give a template or a snapshot, not both", hint="a snapshot has its template")
    return begin
