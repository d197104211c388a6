"""Templates: what sandboxes are made from, built once and kept."""

from __future__ import annotations

from dataclasses import asdict, replace
from os import PathLike
from typing import TYPE_CHECKING

from skerry.core import registry
from skerry.core.errors import InvalidArgument, TemplateNotFound
from skerry.core.models import BuiltTemplate, SandboxSpec, TemplateInfo
from skerry.core.provider import Provider
from skerry.sdk.building import BUILD_TIMEOUT, Builder, ProgressCallback, offering
from skerry.sdk.commands import TextCallback
from skerry.templates import Template, catalogue, load

if TYPE_CHECKING:
    from skerry.sdk.images import ImageOption

TemplateOption = Template | str
"""A template by name (`node`, `node:22`), or itself."""


class AsyncTemplates:
    """The templates of a provider: those that come with Skerry, and those built here."""

    def __init__(self, provider: str | Provider | None = None) -> None:
        self._provider = registry.provider(provider)
        self._templates = offering(self._provider)

    async def build(
        self,
        template: Template | str | PathLike[str] | None = None,
        *,
        image: ImageOption | None = None,
        name: str | None = None,
        force: bool = False,
        timeout: float = BUILD_TIMEOUT,
        on_log: TextCallback | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> TemplateInfo:
        """Build a template, with all that it is based on, unless it is built; `create(template=name)` finds it then.

        `template` is one by name, itself, or the path of a template.yaml or of its directory: a text with a slash in
        it is a path. `image` is an image instead, to be known by `name`. `force` builds it anew. `on_log` gets what
        the steps write, `on_progress` each step before it runs; each template may take `timeout` seconds.

        Raises:
            TemplateBuildFailed: a step failed; `step` names it, `log` has its last words. Nothing is left.
            TemplateNotFound: there is no such template, or no such base.
            DiskFull: there is no room for it. Nothing is left.
            Conflict: with `force`, while a sandbox or another template needs the one that is there.
            InvalidArgument, Unsupported, ProviderUnavailable.
        """
        builder = Builder(self._provider, on_log=on_log, on_progress=on_progress, timeout=timeout)
        if (template is None) == (image is None):
            raise InvalidArgument("give a template or an image")
        if image is not None:
            from skerry.sdk.images import build_image

            return _info(await build_image(builder, image, name=name))
        assert template is not None
        wanted = await self._definition(template)
        if force:
            await self._forget(wanted)
        return _info(await builder.build(wanted))

    async def list(self) -> list[TemplateInfo]:
        """Those that come with Skerry, built or not, and those built here, by name."""
        built = list(await self._templates.list_templates())
        names = {each.name for each in built}
        found = [_info(each) for each in built]
        found += [
            _offered(template)
            for template in catalogue.builtin()
            if template.reference not in names and template.name != "host"
        ]
        return sorted(found, key=lambda info: (info.name, info.version))

    async def show(self, name: str) -> TemplateInfo:
        """One of them. Raises TemplateNotFound."""
        try:
            return _info(await self._templates.find_template(_reference(name)))
        except TemplateNotFound:
            return _offered(catalogue.resolve(name))

    async def remove(self, name: str) -> None:
        """Remove what was built under that name; one that comes with Skerry is built again when it is needed.

        Raises TemplateNotFound, Conflict while a sandbox, a snapshot or another template needs it.
        """
        found = await self._templates.find_template(_reference(name))
        await self._templates.remove_template(found.id)

    async def _definition(self, template: Template | str | PathLike[str]) -> Template:
        if isinstance(template, Template):
            return _not_builtin(template)
        if isinstance(template, str) and "/" not in template and not template.endswith((".yaml", ".yml")):
            return catalogue.resolve(template)
        return _not_builtin(load(template))

    async def _forget(self, template: Template) -> None:
        try:
            await self.remove(template.reference)
        except TemplateNotFound:
            pass


async def resolve_template(
    provider: Provider,
    *,
    template: TemplateOption | None,
    image: ImageOption | None = None,
    language: str | None = None,
    runtime: str | None = None,
    build: bool = True,
    on_log: TextCallback | None = None,
    on_progress: ProgressCallback | None = None,
) -> BuiltTemplate | None:
    """The template a new sandbox is made from, built if it is not; None is `host`.

    Raises as `AsyncTemplates.build`, and TemplateNotFound for one that would have to be built without `build`.
    """
    options = {"template": template, "image": image, "language": language, "runtime": runtime}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise InvalidArgument("give one of template, image, language and runtime")
    if not given or template == "host":
        return None
    templates = offering(provider, given[0])
    if isinstance(template, str) and "@" in template:
        return await templates.find_template(template)
    builder = Builder(provider, on_log=on_log, on_progress=on_progress, allowed=build)
    if image is not None:
        from skerry.sdk.images import build_image

        return await build_image(builder, image)
    if isinstance(template, Template):
        return await builder.build(_not_builtin(template))
    if language is not None:
        return await builder.named(_of_language(language))
    return await builder.named(template or runtime or "")


_LANGUAGES = {
    "python": "python",
    "javascript": "node",
    "typescript": "node-ts",
    "bash": "debian",
    "shell": "debian",
}


def based_on(spec: SandboxSpec, built: BuiltTemplate) -> SandboxSpec:
    """The spec with its template, and the limits that the template brings where none are asked for."""
    asked = {name: value for name, value in asdict(spec.resources).items() if value is not None}
    return replace(spec, template=built.reference, resources=replace(built.resources, **asked))


def _of_language(language: str) -> str:
    """The template for a language; a name that is none may be a template's own."""
    return _LANGUAGES.get(language, language)


def _reference(name: str) -> str:
    """What a name stands for among what is built: aliases and short versions are those of the catalogue."""
    try:
        return catalogue.resolve(name).reference
    except TemplateNotFound:
        return name


def _not_builtin(template: Template) -> Template:
    """Raises InvalidArgument for a name that comes with Skerry: it means the same everywhere."""
    taken = {name for each in catalogue.builtin() for name in (each.name, *each.aliases)}
    if clash := taken & {template.name, *template.aliases}:
        known = next(each for each in catalogue.builtin() if clash & {each.name, *each.aliases})
        if template != known:
            raise InvalidArgument(
                f"{min(clash)!r} is the name of a template that comes with Skerry", hint="choose another"
            )
    return template


def _info(built: BuiltTemplate) -> TemplateInfo:
    name, _, version = built.name.partition(":")
    return TemplateInfo(
        name=name,
        version=version,
        description=built.description,
        aliases=built.aliases,
        built=True,
        digest=built.id,
        size=built.size,
        built_at=built.created_at,
        ports=built.ports,
    )


def _offered(template: Template) -> TemplateInfo:
    return TemplateInfo(
        name=template.name,
        version=template.version,
        description=template.description,
        aliases=template.aliases,
        built=False,
        digest="",
        size=None,
        built_at=None,
        ports=template.ports,
    )
