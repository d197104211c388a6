"""Templates: what sandboxes are made from, built once and kept."""

from __future__ import annotations

from dataclasses import asdict, replace
from os import PathLike
from typing import TYPE_CHECKING

from skerry.core import BuiltTemplate, InvalidArgument, Provider, SandboxSpec, TemplateInfo, TemplateNotFound, registry
from skerry.sdk.commands.request import TextCallback
from skerry.sdk.templates.builder import BUILD_TIMEOUT, Builder, ProgressCallback, meant, offering
from skerry.templates import Template, catalogue, load

if TYPE_CHECKING:
    from skerry.sdk.templates.images import ImageOption

TemplateOption = Template | str
"""A template by name (`node`, `node:22`), or itself."""


class AsyncTemplates:
    """The templates of a provider: those that come with Skerry, and those built here."""

    def __init__(self, provider: str | Provider | None = None) -> None:
        self._provider = registry.provider(provider)
        self._templates = offering(self._provider)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._provider.name}>"

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
        """Build a template and all that it is based on, unless it is built; then `create(template=name)` finds it.

        `template` is a name, a Template, or the path of a template.yaml or of its directory: a text with a slash in it
        is a path. `image` is an image instead, which `name` then names. `force` builds it again, but not what it is
        based on; sandboxes keep the one they have, which is removed when nothing needs it any more. `on_log` gets what
        the steps write, `on_progress` each step before it runs; without both a line on a terminal shows them. Each
        template may take `timeout` seconds.

        Raises:
            TemplateBuildFailed: a step failed; `step` names it, `log` has the end of its output. Nothing is left.
            TemplateNotFound: there is no such template, or no such base.
            DiskFull: there is no room for it. Nothing is left.
            InvalidArgument: a name that is taken, or a definition that makes no sense.
            Unsupported, ProviderUnavailable.
        """
        builder = Builder(self._provider, on_log=on_log, on_progress=on_progress, timeout=timeout, force=force)
        if (template is None) == (image is None):
            raise InvalidArgument("give a template or an image")
        if template is not None and name is not None:
            raise InvalidArgument("name: a template has its own", hint="`name` is for an image")
        if image is not None:
            from skerry.sdk.templates.images import build_image

            return _info(await build_image(builder, image, name=name))
        assert template is not None
        wanted = await self._definition(template)
        if isinstance(wanted, Template):
            return _info(await builder.build(wanted))
        if force:
            raise InvalidArgument(
                f"the definition of the template {wanted.name!r} is not kept", hint="give its template.yaml"
            )
        return _info(await builder.find(wanted.reference))

    async def list(self) -> list[TemplateInfo]:
        """The templates that come with Skerry, built or not, and those built here, by name.

        `host` needs no build: it counts as built, and has no digest.
        """
        built = list(await self._templates.list_templates())
        names = {each.name for each in built}
        found = [_info(each) for each in built]
        found += [_offered(template) for template in catalogue.builtin() if template.reference not in names]
        return sorted(found, key=lambda info: (info.name, info.version))

    async def show(self, name: str) -> TemplateInfo:
        """A template by name. Raises TemplateNotFound."""
        found = await meant(self._templates, name)
        if isinstance(found, BuiltTemplate):
            return _info(found)
        built = [each for each in await self._templates.list_templates() if each.name == found.reference]
        return _info(built[0]) if built else _offered(found)

    async def remove(self, name: str) -> None:
        """Remove all that was built under that name and version, or one by its digest; one that comes with Skerry is
        built again when it is needed.

        Raises TemplateNotFound, Conflict while a sandbox, a snapshot or another template needs it.
        """
        found = await meant(self._templates, name)
        if isinstance(found, BuiltTemplate) and name in (found.id, found.reference):
            await self._templates.remove_template(found.id)
            return
        full = found.name if isinstance(found, BuiltTemplate) else found.reference
        built = [each for each in await self._templates.list_templates() if each.name == full]
        if not built:
            raise TemplateNotFound(f"the template {name!r} is not built")
        for each in reversed(built):  # the newest last: the name means it until all are gone
            await self._templates.remove_template(each.id)

    async def _definition(self, template: Template | str | PathLike[str]) -> Template | BuiltTemplate:
        wanted: Template | BuiltTemplate
        if isinstance(template, str) and "/" not in template and not template.endswith((".yaml", ".yml")):
            wanted = await meant(self._templates, template)
        else:
            wanted = catalogue.check_own(template if isinstance(template, Template) else load(template))
        if wanted == catalogue.HOST:
            raise InvalidArgument("'host' is this machine's own files: there is nothing to build")
        return wanted


async def resolve_template(
    provider: Provider,
    *,
    template: TemplateOption | None = None,
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
    if not given or template in ("host", catalogue.HOST):
        return None
    offering(provider, given[0])
    builder = Builder(provider, on_log=on_log, on_progress=on_progress, allowed=build)
    if image is not None:
        from skerry.sdk.templates.images import build_image

        return await build_image(builder, image)
    if isinstance(template, Template):
        return await builder.build(catalogue.check_own(template))
    return await builder.named(template or runtime or language or "")


def based_on(spec: SandboxSpec, built: BuiltTemplate) -> SandboxSpec:
    """The spec with its template, and the limits that the template brings where none are asked for."""
    asked = {name: value for name, value in asdict(spec.resources).items() if value is not None}
    return replace(spec, template=built.reference, resources=replace(built.resources, **asked))


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
        built=template == catalogue.HOST,
        digest="",
        size=None,
        built_at=None,
        ports=template.ports,
    )
