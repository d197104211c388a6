"""Building templates: their steps are run in a sandbox, and what it wrote becomes a layer.

A layer is known by the digest of all that decided it, so what is built already is never built again. If several clients
want the same layer at once, one builds it while the others wait.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Literal

from skerry._model import Model
from skerry.core import (
    BuiltTemplate,
    ExecResult,
    InvalidArgument,
    Provider,
    Resources,
    SandboxSpec,
    Script,
    TemplateNotFound,
    Templates,
    Unsupported,
    check_seconds,
    limits,
    template_names,
)
from skerry.sdk.commands.request import TextCallback
from skerry.sdk.log import template_log
from skerry.sdk.templates.progress_line import progress_line
from skerry.sdk.templates.step_errors import KEPT_OUTPUT, named_step, step_error
from skerry.templates import (
    NPM,
    PATH,
    PYTHON,
    Command,
    Step,
    Template,
    aptsources,
    bootstrap,
    catalogue,
    digest,
    environment,
    steps,
)

if TYPE_CHECKING:
    from skerry.sdk.sandbox import AsyncSandbox

BUILD_TIMEOUT = 1800.0


class BuildProgress(Model):
    """How far a build is."""

    template: str
    """With its version; the bases of a template are built before it."""
    step: str
    """What is about to run; empty at the end."""
    done: int
    total: int
    """Steps of this template."""


ProgressCallback = Callable[[BuildProgress], object]
"""Gets each step before it runs; may be a coroutine function."""


def offering(provider: Provider, option: str = "template") -> Templates:
    """The provider as one that builds templates. Raises Unsupported."""
    if not isinstance(provider, Templates):
        raise Unsupported(f"{option}: the provider {provider.name!r} builds no templates", option=option)
    return provider


async def meant(templates: Templates, name: str) -> Template | BuiltTemplate:
    """What a name stands for, in every call: a template that comes with Skerry, or else one that is built here.

    Raises TemplateNotFound, which names the nearest of all, and Unsupported for one that needs a GPU.
    """
    if "@" in name:
        return await templates.find_template(name)
    try:
        return catalogue.resolve(name)
    except TemplateNotFound as error:
        unknown = error
    built = await templates.list_templates()
    try:
        return template_names.resolve_built(name, built, others=catalogue.names())
    except TemplateNotFound as error:
        if catalogue.knows(name):  # there is no such version of it
            raise unknown from None
        if error.hint == TemplateNotFound.hint:  # which says nothing about the name
            error.hint = unknown.hint
        raise


class Builder:
    """Builds a template with all that it is based on. `timeout` is for each template.

    Each step is logged. Without callbacks, a line on the caller's terminal shows it.

    With `force`, the first template it is asked for is built again, and replaces the one that is there.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        on_log: TextCallback | None = None,
        on_progress: ProgressCallback | None = None,
        timeout: float = BUILD_TIMEOUT,
        allowed: bool = True,
        force: bool = False,
    ) -> None:
        self._provider, self._templates = provider, offering(provider)
        self._line = progress_line() if on_log is None and on_progress is None else None
        if self._line is not None:
            on_log, on_progress = self._line.log, self._line.progress
        self._on_log, self._on_progress = on_log, on_progress
        self._timeout = check_seconds(timeout)
        self._allowed = allowed
        self._force = force
        self._asked: str | None = None  # the template that the others are built for
        self._end = 0.0
        self._logged = ("", 0, "")  # the last step in the log; a pull is reported again while it gets on

    async def named(self, name: str) -> BuiltTemplate | None:
        """The template of that name, built if it is not; None is `host`. Raises TemplateNotFound and as `build`."""
        found = await meant(self._templates, name)
        if found == catalogue.HOST:
            return None
        if isinstance(found, Template):
            return await self.build(found)
        return await self.find(found.reference)

    async def build(self, template: Template) -> BuiltTemplate:
        """The template, built if it is not yet. On any failure nothing of it is left.

        Raises TemplateBuildFailed, DiskFull, TemplateNotFound, Unsupported, ProviderUnavailable, InvalidArgument for a
        name that another template has.
        """
        force = self.forced()
        self._asked = self._asked or template.reference
        recipe, base, directory = await self._plan(template)
        if base is not None:
            template = recipe = _with_path(template, base)
        layer = digest(recipe, _key(base))[:40]
        wanted = _describe(template, base, layer, host=base.host if base else template.base == "host")
        if not force:
            try:
                return await self._current(wanted)
            except TemplateNotFound:
                pass
        self.require(template.reference)
        await self.check_names(template.name, template.aliases)
        async with self._templates.building(layer):
            if not force:
                if not await self._templates.has_layer(layer):
                    await self._make_layer(template.reference, recipe, base, layer, directory)
                return await self._templates.add_template(wanted)
            fresh = new_layer_id(layer)
            async with self._templates.building(fresh):  # until the template that names it is there
                await self._make_layer(template.reference, recipe, base, fresh, directory)
                return await self.replace(
                    replace(wanted, layers=(fresh, *wanted.layers[1:]), origin=wanted.id),
                    lambda other: wanted.id in (other.id, other.origin),
                )

    def forced(self) -> bool:
        """Whether to build again what is asked for now; its bases, which come next, are not built again."""
        force, self._force = self._force, False
        return force

    async def _current(self, wanted: BuiltTemplate) -> BuiltTemplate:
        """The template that was built from a definition, or was built again in its place. Raises TemplateNotFound."""
        try:
            found = await self.find(wanted.reference)
            if not found.superseded:
                return found
        except TemplateNotFound:
            pass
        for other in await self._templates.list_templates():
            if other.origin == wanted.id:
                return await self.find(other.reference)
        raise TemplateNotFound(f"the template {wanted.name!r} is not built")

    async def replace(self, info: BuiltTemplate, of: Callable[[BuiltTemplate], bool]) -> BuiltTemplate:
        """Keep it, and let those it replaces go: at once, or when the last sandbox that needs them is gone."""
        added = await self.add(info)
        for other in await self._templates.list_templates():
            if other.id != added.id and of(other):
                try:
                    await self._templates.remove_template(other.id, later=True)
                except TemplateNotFound:
                    pass  # somebody else was quicker
        return added

    async def check_names(self, name: str, aliases: Sequence[str] = ()) -> None:
        """Raises InvalidArgument for a name that another template that is built has, or an alias of one."""
        mine = {name, *aliases}
        for other in await self._templates.list_templates():
            title = template_names.stem(other)
            if title != name and (clash := mine & {title, *other.aliases}):
                hint = f"choose another, or remove {other.name}"
                raise InvalidArgument(f"{min(clash)!r} is a name of the template {other.name!r}", hint=hint)

    def require(self, name: str) -> None:
        """Raises TemplateNotFound where nothing may be built."""
        if not self._allowed:
            hint = "`skerry template build` builds it; or create without build=False"
            raise TemplateNotFound(f"the template {self._asked or name!r} is not built", hint=hint)

    async def find(self, name: str) -> BuiltTemplate:
        """One that is built, with all its layers. Raises TemplateNotFound."""
        found = await self._templates.find_template(name)
        for layer in found.layers:
            if not await self._templates.has_layer(layer):
                raise TemplateNotFound(f"a layer of the template {found.name!r} is gone", hint="build it again")
        return found

    def building(self, digest: str) -> AbstractAsyncContextManager[None]:
        """Entered by one at a time."""
        return self._templates.building(digest)

    async def has_layer(self, digest: str) -> bool:
        return await self._templates.has_layer(digest)

    async def add(self, info: BuiltTemplate) -> BuiltTemplate:
        """Keep it under its id."""
        return await self._templates.add_template(_identified(info))

    async def _plan(self, template: Template) -> tuple[Template, BuiltTemplate | None, str | None]:
        """What to run, on what, and which directory is the result; None: all that was written."""
        if template.base is None:
            return bootstrap.recipe(template, aptsources.read()), None, bootstrap.ROOT_TREE
        if template.base.startswith("image:"):
            from skerry.sdk.templates.images import build_image

            return template, await build_image(self, template.base.removeprefix("image:")), None
        return template, await self.named(template.base), None

    async def _make_layer(
        self, name: str, recipe: Template, base: BuiltTemplate | None, layer: str, directory: str | None
    ) -> None:
        todo = steps(recipe)
        async with self.sandbox(base, recipe.resources) as box:
            for number, step in enumerate(todo):
                await self.report(name, step.name, number, len(todo))
                await self.step(box, name, step)
            await self.report(name, "", len(todo), len(todo))
            await self.commit(box, layer, directory)

    @asynccontextmanager
    async def sandbox(
        self, base: BuiltTemplate | None, resources: Resources, *, network: Literal["none", "open"] = "open"
    ) -> AsyncIterator[AsyncSandbox]:
        """Where steps run; it is gone afterwards, and if this process dies."""
        from skerry.sdk.sandbox import AsyncSandbox

        started = time.perf_counter()
        self._end = time.monotonic() + self._timeout
        spec = SandboxSpec(
            template="host" if base is None else base.reference,
            network=network,
            user="root",
            workdir="/",
            timeout=min(self._timeout + 60.0, limits().max_lifetime),
            resources=_room(resources),
            purpose="template",
            leased=True,
            unsynced=True,
        )
        box = AsyncSandbox(self._provider, await self._provider.create(spec), spec, owned=True)
        try:
            async with box:
                yield box
        finally:
            if self._line is not None:
                self._line.clear()
        extra = {"op": "template.build", "provider": self._provider.name, "duration": time.perf_counter() - started}
        template_log.info("built a layer in %s after %.1f s", box.id, extra["duration"], extra=extra)

    async def report(self, name: str, step: str, done: int, total: int) -> None:
        """Tell which step comes next."""
        kind = step.partition(":")[0]  # no more of it in the log: a script may have a secret in it
        if step and self._logged != (name, done, kind):
            self._logged = (name, done, kind)
            template_log.info("%s: step %d of %d: %s", name, done + 1, total, kind)
        if self._on_progress is not None:
            outcome = self._on_progress(BuildProgress(template=name, step=step, done=done, total=total))
            if inspect.isawaitable(outcome):
                await outcome

    async def step(self, box: AsyncSandbox, name: str, step: Step) -> ExecResult:
        """Run one. Raises TemplateBuildFailed, DiskFull."""
        result = await self.run(box, name, step)
        if not result.ok:
            raise step_error(f"template {name}", step.name, result)
        return result

    async def run(self, box: AsyncSandbox, name: str, step: Step) -> ExecResult:
        """Run one, whatever comes of it. Raises TemplateBuildFailed if it cannot even be run."""
        with named_step(f"template {name}", step.name):
            return await box.exec(
                step.run,
                cwd=step.cwd,
                env=step.env,
                user=step.user,
                stdin=step.stdin,
                timeout=self.left(),
                on_stdout=self._on_log,
                on_stderr=self._on_log,
                output_limit=KEPT_OUTPUT,
            )

    def left(self) -> float:
        """Seconds until the build in hand must be done."""
        return max(0.001, self._end - time.monotonic())

    async def commit(self, box: AsyncSandbox, layer: str, directory: str | None) -> None:
        """Keep what the sandbox wrote; it is gone then."""
        await box._end(lambda: self._templates.commit_layer(box.id, layer, directory=directory))


def _room(wanted: Resources) -> Resources:
    """What a build gets: the defaults, and more where the template's own sandboxes do."""
    usual = limits()
    return Resources(
        cpu=None if wanted.cpu is None else max(wanted.cpu, min(usual.cpu, usual.max_cpu)),
        memory=None if wanted.memory is None else max(wanted.memory, min(usual.memory, usual.max_memory)),
        pids=None if wanted.pids is None else max(wanted.pids, min(usual.pids, usual.max_pids)),
    )


def _key(base: BuiltTemplate | None) -> str:
    """What a build on `base` depends on."""
    if base is None:
        return "host"
    return hashlib.sha256(json.dumps([base.layers, base.host, sorted(base.env.items())]).encode()).hexdigest()


def _with_path(template: Template, base: BuiltTemplate) -> Template:
    """The template with the PATH of its base, which an image may need, behind the directories of packages."""
    found = base.env.get("PATH")
    if found in (None, "", PATH) or "PATH" in template.env:
        return template
    both = dict.fromkeys([*(f"{top}/bin" for top in (PYTHON, NPM)), *found.split(":")])
    return replace(template, env={**template.env, "PATH": ":".join(both)})


def _describe(template: Template, base: BuiltTemplate | None, layer: str, *, host: bool) -> BuiltTemplate:
    """What sandboxes of a template get; complete but for what is known when it is built."""
    return _identified(
        BuiltTemplate(
            name=template.reference,
            id="",
            description=template.description,
            layers=(layer, *(base.layers if base else ())),
            base=base.id if base else None,
            host=host,
            env={**(base.env if base else {}), **environment(template)},
            user=template.user,
            workdir=template.workdir,
            ports=template.ports,
            resources=template.resources,
            post_create=_scripts(template.scripts.post_create),
            post_start=_scripts(template.scripts.post_start),
            aliases=template.aliases,
        )
    )


def _identified(info: BuiltTemplate) -> BuiltTemplate:
    """With its id, the hash over all that decides what sandboxes get."""
    plain = asdict(replace(info, id="", created_at=0.0, size=None))
    for name in ("origin", "superseded"):
        del plain[name]
    return replace(info, id=hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16])


def new_layer_id(layer: str) -> str:
    """The digest of a layer that is built although that one is there."""
    return hashlib.sha256(f"{layer} {secrets.token_hex(16)}".encode()).hexdigest()[:40]


def _scripts(commands: tuple[Command, ...]) -> tuple[Script, ...]:
    return tuple(Script(command.run, command.user) for command in commands)
