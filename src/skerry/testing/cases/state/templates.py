"""Templates: built once, in a sandbox, and what sandboxes begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skerry.core import Conflict, Provider, TemplateBuildFailed, TemplateNotFound
from skerry.sdk import AsyncTemplates, BuildProgress
from skerry.templates import Command, File, Scripts, Template
from skerry.testing.cases.base import Conformance, Fresh


class TemplatesConformance(Conformance):
    """Templates built from steps. `base`, a fixture, is the template they are built on."""

    title = "templates"
    needs = "templates"
    patience = 300.0

    @pytest.fixture(scope="class")
    @classmethod
    def base(cls) -> str:
        """What the cases build on: override this where `host` is not the quickest."""
        return "host"

    @pytest.fixture
    async def templates(self, provider: Provider) -> AsyncIterator[AsyncTemplates]:
        made = AsyncTemplates(provider)
        before = {info.digest for info in await made.list()}
        yield made
        for _ in range(2):
            for info in await made.list():
                if info.built and info.digest not in before:
                    try:
                        await made.remove(info.digest)
                    except Conflict:
                        continue  # the base of another, which goes first

    async def test_a_sandbox_has_what_the_build_left(self, templates: AsyncTemplates, fresh: Fresh, base: str) -> None:
        """Files, what scripts wrote, variables, ports and the working directory."""
        template = Template(
            name="conformance-full",
            base=base,
            files={"given.txt": File("given")},
            env={"COLOR": "green"},
            ports=(8123,),
            workdir="/workspace/project",
            scripts=Scripts(build=(Command("cat given.txt >made.txt"), Command("id -u >/root-was-here", "root"))),
        )
        await templates.build(template)
        sandbox = await fresh(template="conformance-full")
        result = await sandbox.exec("pwd; cat given.txt made.txt /root-was-here; echo $COLOR")
        assert result.stdout == "/workspace/project\ngivengiven0\ngreen\n"
        info = await sandbox.info()
        assert (info.template, info.ports) == ("conformance-full:1", (8123,))

    async def test_sandboxes_of_a_template_do_not_see_each_other(
        self, templates: AsyncTemplates, fresh: Fresh, base: str
    ) -> None:
        """What one changes, the next one finds as it was built."""
        await templates.build(_script("conformance-own", base, "echo built >file"))
        first = await fresh(template="conformance-own")
        await first.exec("echo changed >file; touch other", check=True)
        second = await fresh(template="conformance-own")
        assert (await second.exec("cat file; ls")).stdout == "built\nfile\n"

    async def test_what_is_built_is_not_built_again(self, templates: AsyncTemplates, fresh: Fresh, base: str) -> None:
        """A second build and a create run no step."""
        steps: list[BuildProgress] = []
        template = _script("conformance-once", base, "true")
        await templates.build(template, on_progress=steps.append)
        assert steps[-1].done == steps[-1].total
        steps.clear()
        await templates.build(template, on_progress=steps.append)
        await fresh(template="conformance-once", build=False, on_progress=steps.append)
        assert steps == []

    async def test_a_template_is_built_on_another(self, templates: AsyncTemplates, fresh: Fresh, base: str) -> None:
        """The template has what its base has, except for what it removed."""
        await templates.build(_script("conformance-below", base, "touch stays goes"))
        await templates.build(_script("conformance-above", "conformance-below", "rm goes; touch new"))
        sandbox = await fresh(template="conformance-above")
        assert (await sandbox.exec("ls")).stdout == "new\nstays\n"
        with pytest.raises(Conflict):
            await templates.remove("conformance-below")

    async def test_a_step_that_fails_is_named_and_leaves_nothing(
        self, templates: AsyncTemplates, attempt: Fresh, base: str
    ) -> None:
        """The error has the step and the end of its output; then there is no such template."""
        with pytest.raises(TemplateBuildFailed) as caught:
            await templates.build(_script("conformance-fails", base, "true", "echo last words >&2; exit 9"))
        assert caught.value.step.startswith("script 2")
        assert "last words" in caught.value.log
        with pytest.raises(TemplateNotFound):
            await attempt(template="conformance-fails", build=False)

    async def test_a_template_in_use_is_not_removed(self, templates: AsyncTemplates, fresh: Fresh, base: str) -> None:
        """A template is not removed while a sandbox has it; afterwards it is."""
        await templates.build(_script("conformance-used", base, "touch file"))
        sandbox = await fresh(template="conformance-used")
        with pytest.raises(Conflict):
            await templates.remove("conformance-used")
        assert (await sandbox.exec("ls")).stdout == "file\n"
        await sandbox.destroy()
        await templates.remove("conformance-used")
        with pytest.raises(TemplateNotFound):
            await templates.show("conformance-used")

    async def test_scripts_of_a_new_sandbox_run_before_it_is_there(
        self, templates: AsyncTemplates, fresh: Fresh, base: str
    ) -> None:
        """When `create` returns, post_create has ended and post_start runs."""
        scripts = Scripts(post_create=(Command("echo ready >state"),), post_start=(Command("sleep 300"),))
        await templates.build(Template(name="conformance-starts", base=base, scripts=scripts))
        sandbox = await fresh(template="conformance-starts")
        assert (await sandbox.exec("cat state")).stdout == "ready\n"
        assert [process.status.value for process in await sandbox.processes.list()] == ["running"]

    async def test_an_unknown_template_raises(self, attempt: Fresh) -> None:
        """An unknown template is an error, and nothing is made."""
        with pytest.raises(TemplateNotFound):
            await attempt(template="no-such-template-anywhere")


def _script(name: str, base: str, *lines: str) -> Template:
    return Template(name=name, base=base, scripts=Scripts(build=tuple(Command(line) for line in lines)))
