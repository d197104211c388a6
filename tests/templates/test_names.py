"""A template's name means one thing, to create() and to every verb of templates, and a name that is taken is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry import AsyncSandbox, AsyncTemplates, InvalidArgument, TemplateNotFound, Unsupported
from skerry.core.models import BuiltTemplate
from skerry.core.template_names import resolve_built
from skerry.templates import Template, resolve
from tests import inventory
from tests.templates.archives import docker_archive, file, layer

pytestmark = pytest.mark.anyio

TAKEN = [
    "image",
    "host",
    "node",
    "node20",
    "node-v20",
    "nodejs",
    "nodejs18",
    "python311",
    "python3",
    "fastapi",
    "gpu-ml",
    "react-ts",
    "debian12",
    "javascript",
    "bash5",
    "0123456789abcdef",
]


def built(name: str, *aliases: str, at: float = 1.0, superseded: bool = False) -> BuiltTemplate:
    number = abs(hash((name, aliases, at)))
    return BuiltTemplate(name=name, id=f"{number:016x}"[-16:], aliases=aliases, created_at=at, superseded=superseded)


@pytest.mark.parametrize("name", TAKEN)
async def test_a_name_that_means_something_already_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'{name}'") as caught:
        await AsyncSandbox.create(template=Template(name=name, base="host", description="mine"))
    assert caught.value.hint
    (tmp_path / "template.yaml").write_text(f"name: '{name}'\nbase: host\ndescription: mine\n")
    with pytest.raises(InvalidArgument, match=f"'{name}'"):
        await AsyncTemplates().build(tmp_path)
    (tmp_path / "template.yaml").write_text(f"name: mine\nbase: host\naliases: ['{name}']\n")
    with pytest.raises(InvalidArgument, match=f"'{name}'"):
        await AsyncTemplates().build(tmp_path)
    image = docker_archive(tmp_path / "image.tar", layer(file("a")))
    with pytest.raises(InvalidArgument, match=f"'{name}'"):
        await AsyncTemplates().build(image=image, name=name)
    assert not [info for info in await AsyncTemplates().list() if info.digest]


@pytest.mark.parametrize("name", ["my-node", "nodes", "shop2", "image-tools", "hosting", "node-ts-lint"])
async def test_a_name_that_only_resembles_one_is_free(templates: AsyncTemplates, name: str) -> None:
    await templates.build(Template(name=name, base="host"))
    assert (await templates.show(name)).name == name
    async with await AsyncSandbox.create(template=name) as sandbox:
        assert (await sandbox.info()).template == f"{name}:1"


async def test_host_is_never_built(templates: AsyncTemplates) -> None:
    with pytest.raises(InvalidArgument, match="nothing to build"):
        await templates.build("host")
    for name in ("host", "host:1", resolve("host")):
        async with await AsyncSandbox.create(template=name) as sandbox:
            assert (await sandbox.info()).template == "host"
    with pytest.raises(TemplateNotFound, match="'host'"):
        await templates.remove("host")
    assert not [info for info in await templates.list() if info.digest]


@pytest.mark.parametrize("option", ["template", "language", "runtime"])
async def test_what_needs_a_gpu_is_refused_before_anything_happens(option: str, skerry_home: Path) -> None:
    before = inventory.take(skerry_home)
    with pytest.raises(Unsupported, match="needs a GPU") as caught:
        await AsyncSandbox.create(**{option: "pytorch-gpu"})  # type: ignore[arg-type]
    assert "'pytorch'" in caught.value.hint
    with pytest.raises(Unsupported, match="GPU"):
        await AsyncTemplates().build(Template(name="mine", base="gpu-ml"))
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


@pytest.mark.parametrize("name", ["node22", "nodejs18.x", "typescript"])
async def test_a_language_and_a_runtime_are_named_as_templates_are(name: str) -> None:
    for option in ("template", "language", "runtime"):
        with pytest.raises(TemplateNotFound, match=f"'{resolve(name).reference}' is not built"):
            await AsyncSandbox.create(build=False, **{option: name})  # type: ignore[arg-type]


async def test_one_that_comes_with_skerry_may_be_given_as_itself_in_any_version() -> None:
    for name in ("node:20", "node"):
        with pytest.raises(TemplateNotFound, match="is not built"):
            await AsyncSandbox.create(template=resolve(name), build=False)


async def test_a_name_of_one_is_no_alias_of_another(templates: AsyncTemplates) -> None:
    await templates.build(Template(name="shop", base="host", aliases=("store",)))
    with pytest.raises(InvalidArgument, match="'store' is a name of the template 'shop:1'"):
        await templates.build(Template(name="store", base="host"))
    with pytest.raises(InvalidArgument, match="'shop' is a name of the template 'shop:1'"):
        await templates.build(Template(name="market", base="host", aliases=("shop",)))
    await templates.build(Template(name="shop", version="2", base="host", aliases=("store",)))
    assert (await templates.show("store")).version == "2"
    with pytest.raises(InvalidArgument, match="its own base"):
        Template(name="shop", aliases=("store",), base="store:1")


async def test_every_verb_takes_a_name_for_the_same(templates: AsyncTemplates) -> None:
    await templates.build(Template(name="shop", version="1.1", base="host", aliases=("store",)))
    await templates.build(Template(name="shop", version="1.2", base="host", aliases=("store",)))
    await templates.build(Template(name="shop", version="2", base="host", aliases=("store",)))
    for name, version in (("shop", "2"), ("shop:1", "1.2"), ("store:1.1", "1.1"), ("store", "2")):
        assert (await templates.show(name)).version == version
        assert (await templates.build(name)).version == version
        async with await AsyncSandbox.create(template=name) as sandbox:
            assert (await sandbox.info()).template == f"shop:{version}"
    await templates.remove("shop:1")
    assert [info.version for info in await templates.list() if info.digest] == ["1.1", "2"]


async def test_remove_leaves_nothing_older_under_the_name(templates: AsyncTemplates) -> None:
    for port in (1000, 2000, 3000):
        await templates.build(Template(name="shop", base="host", ports=(port,)))
    await templates.remove("shop")
    with pytest.raises(TemplateNotFound):
        await templates.show("shop")


@pytest.mark.parametrize("verb", ["show", "remove", "build", "create"])
async def test_an_unknown_name_raises_with_the_nearest_of_all_there_are(templates: AsyncTemplates, verb: str) -> None:
    await templates.build(Template(name="warehouse", base="host", aliases=("depot",)))
    for wrong, right in (("warehous", "warehouse"), ("depots", "depot"), ("pyton", "python")):
        call = AsyncSandbox.create(template=wrong) if verb == "create" else getattr(templates, verb)(wrong)
        with pytest.raises(TemplateNotFound, match=f"'{wrong}'") as caught:
            await call
        assert caught.value.hint == f"did you mean {right!r}?"
    with pytest.raises(TemplateNotFound, match="'nosuch'") as caught:  # which resembles nothing there is
        await templates.show("nosuch")
    assert "did you mean" not in caught.value.hint
    assert "node-ts" in caught.value.hint
    with pytest.raises(TemplateNotFound, match="no version '7' of the template 'warehouse'") as caught:
        await templates.show("warehouse:7")
    assert "warehouse:1" in caught.value.hint


async def test_a_definition_that_is_not_there_cannot_be_built_anew(templates: AsyncTemplates) -> None:
    await templates.build(Template(name="shop", base="host"))
    with pytest.raises(InvalidArgument, match="definition") as caught:
        await templates.build("shop", force=True)
    assert "template.yaml" in caught.value.hint


async def test_a_name_is_for_an_image_only(templates: AsyncTemplates) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        await templates.build(Template(name="shop", base="host"), name="store")


def test_meant_prefers_what_is_exact_and_then_what_is_new() -> None:
    old, new = built("a:1", at=1.0), built("a:1", at=2.0)
    other, alias = built("a:1.5", at=3.0), built("b:9", "c", at=4.0)
    hidden, picture = built("a:2", at=9.0, superseded=True), built("image:00ff", at=10.0)
    known = [old, hidden, new, picture, other, alias]
    assert resolve_built("a:1", known) is new
    assert resolve_built("a", known) is other
    assert resolve_built("a:1.5", known) is other
    assert resolve_built("c", known) is alias
    assert resolve_built("c:9", known) is alias
    assert resolve_built(old.id, known) is old
    assert resolve_built(old.reference, known) is old
    assert resolve_built(hidden.reference, known) is hidden
    assert resolve_built("image:00ff", known) is picture
    for wrong in ("a:2", "image", "d", "", ":", "@", f"a:1@{'0' * 16}"):
        with pytest.raises(TemplateNotFound):
            resolve_built(wrong, known)
