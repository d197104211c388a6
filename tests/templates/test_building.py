"""Templates are built in sandboxes, once, and sandboxes begin with what the build left."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import anyio
import pytest

from skerry import (
    AsyncSandbox,
    AsyncTemplates,
    BuildProgress,
    Conflict,
    DiskFull,
    InvalidArgument,
    TemplateBuildFailed,
    TemplateNotFound,
)
from skerry.core import registry
from skerry.providers.local import LocalProvider
from skerry.templates import Command, File, Scripts, Template
from tests import inventory
from tests.templates.archives import tiny

pytestmark = pytest.mark.anyio


async def test_what_the_steps_leave_is_in_every_sandbox(templates: AsyncTemplates) -> None:
    template = tiny(
        "full",
        "echo built-by-$(id -un) >made",
        files={"greeting.txt": File("hello\n"), "/etc/full.conf": File("x\n", 0o600, "root")},
        env={"COLOR": "green"},
        workdir="/workspace/app",
        ports=(8000, 9000),
    )
    async with await AsyncSandbox.create(template=template) as sandbox:
        result = await sandbox.exec("pwd; cat made greeting.txt; stat -c '%U %a' made /etc/full.conf; echo $COLOR")
        assert result.stdout == "/workspace/app\nbuilt-by-user\nhello\nuser 644\nroot 600\ngreen\n"
        info = await sandbox.info()
        assert (info.template, info.ports, info.workdir) == ("full:1", (8000, 9000), "/workspace/app")
        assert info.template_id
        await sandbox.exec("rm made; echo mine >greeting.txt", check=True)
    async with await AsyncSandbox.create(template="full") as sandbox:
        assert (await sandbox.exec("cat made greeting.txt")).stdout == "built-by-user\nhello\n"


async def test_the_second_time_nothing_is_built(templates: AsyncTemplates) -> None:
    steps: list[BuildProgress] = []
    log: list[str] = []
    template = tiny("once", "echo a word; echo another >&2")
    built = await templates.build(template, on_progress=steps.append, on_log=log.append)
    assert [(step.done, step.total) for step in steps] == [(0, 2), (1, 2), (2, 2)]
    assert "script 1: echo a word" in steps[1].step
    assert "a word\n" in log
    assert "another\n" in log
    steps.clear()
    assert await templates.build(template, on_progress=steps.append) == built
    async with await AsyncSandbox.create(template="once", build=False, on_progress=steps.append) as sandbox:
        assert (await sandbox.info()).template_id == built.digest
    assert steps == []


async def test_a_change_that_the_build_does_not_see_builds_no_new_layer(templates: AsyncTemplates) -> None:
    steps: list[BuildProgress] = []
    first = await templates.build(tiny("ports", "date +%N >stamp", ports=(1000,)))
    second = await templates.build(tiny("ports", "date +%N >stamp", ports=(2000,)), on_progress=steps.append)
    assert steps == []
    assert first.digest != second.digest
    async with await AsyncSandbox.create(template="ports") as sandbox:
        assert (await sandbox.info()).ports == (2000,)
    await templates.build(tiny("ports", "date +%N >stamp2"), on_progress=steps.append)
    assert steps != []


async def test_a_template_lies_over_its_base(templates: AsyncTemplates) -> None:
    await templates.build(tiny("below", "echo 1 >a; echo 1 >b; mkdir c; touch c/old", env={"A": "1", "B": "1"}))
    above = tiny(
        "above", "rm a; echo 2 >b; rm -r c; mkdir c; touch c/new; echo $A$B >seen", base="below", env={"B": "2"}
    )
    async with await AsyncSandbox.create(template=above) as sandbox:
        assert (
            await sandbox.exec("ls . c; cat b seen; echo $A$B")
        ).stdout == "b\nc\nseen\n\nc:\nnew\n2\n12\n12\n".replace("b\nc\nseen\n\nc:", ".:\nb\nc\nseen\n\nc:")


async def test_a_path_of_the_base_is_kept(templates: AsyncTemplates) -> None:
    tool = {"/special/tool": File("#!/bin/sh\necho found\n", 0o755)}
    await templates.build(tiny("pathed", files=tool, env={"PATH": "/special:/usr/bin:/bin"}))
    async with await AsyncSandbox.create(template=tiny("on-it", "tool >said", base="pathed")) as sandbox:
        assert (await sandbox.exec("cat said; tool; echo $PATH")).stdout.split() == [
            "found",
            "found",
            "/opt/python/bin:/opt/npm/bin:/special:/usr/bin:/bin",
        ]
    async with await AsyncSandbox.create(template=tiny("own", base="pathed", env={"PATH": "/usr/bin"})) as sandbox:
        assert (await sandbox.exec("echo $PATH")).stdout == "/usr/bin\n"


async def test_a_build_cannot_pretend_to_be_prepared(templates: AsyncTemplates) -> None:
    marks = Command("mkdir -p /.skerry/preparing /.skerry/prepared", "root")
    scripts = Scripts(build=(marks,), post_create=(Command("echo created >said"),))
    async with await AsyncSandbox.create(template=tiny("pretender", scripts=scripts)) as sandbox:
        assert (await sandbox.exec("cat said")).stdout == "created\n"


async def test_what_something_needs_is_not_removed(templates: AsyncTemplates, skerry_home: Path) -> None:
    await templates.build(tiny("base", "touch base"))
    async with await AsyncSandbox.create(template=tiny("child", "touch child", base="base")) as sandbox:
        with pytest.raises(Conflict, match="is the base of 'child:1'"):
            await templates.remove("base")
        with pytest.raises(Conflict, match=f"in use by sandbox {sandbox.id}"):
            await templates.remove("child")
        assert (await sandbox.exec("ls")).stdout == "base\nchild\n"
    await templates.remove("child")
    await templates.remove("base")
    with pytest.raises(TemplateNotFound):
        await templates.remove("base")
    assert list((skerry_home / "pool/layers").iterdir()) == []
    assert list((skerry_home / "templates").glob("*.json")) == []


async def test_an_unbuilt_template_is_refused_where_building_is_not_wanted() -> None:
    with pytest.raises(TemplateNotFound, match="is not built"):
        await AsyncSandbox.create(template=tiny("unbuilt", "true"), build=False)
    with pytest.raises(TemplateNotFound, match="'above:1' is not built"):  # not its base, which is not built either
        await AsyncSandbox.create(template=Template(name="above", base="python"), build=False)


@pytest.mark.parametrize("name", ["no-such-template", "nod", "node:1"])
async def test_an_unknown_name_raises_with_the_nearest(name: str) -> None:
    with pytest.raises(TemplateNotFound) as caught:
        await AsyncSandbox.create(template=name)
    assert "node" in caught.value.hint or name == "no-such-template"


async def test_a_name_that_comes_with_skerry_cannot_be_taken(templates: AsyncTemplates) -> None:
    with pytest.raises(InvalidArgument, match="comes with Skerry"):
        await templates.build(tiny("python", "true"))


async def test_one_of_template_image_language_and_runtime() -> None:
    with pytest.raises(InvalidArgument, match="one of"):
        await AsyncSandbox.create(template="host", language="python")


async def test_a_failed_step_is_named_and_leaves_nothing(templates: AsyncTemplates, skerry_home: Path) -> None:
    before = inventory.take(skerry_home)
    with pytest.raises(TemplateBuildFailed) as caught:
        await templates.build(tiny("broken", "echo fine", "echo some words >&2; exit 7"))
    assert caught.value.step == "script 2: echo some words >&2; exit 7"
    assert "exited with 7: some words" in str(caught.value)
    assert caught.value.log == "some words\n"
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}
    with pytest.raises(TemplateNotFound):
        await AsyncSandbox.create(template="broken", build=False)


async def test_a_step_without_a_network_says_so(templates: AsyncTemplates) -> None:
    with pytest.raises(TemplateBuildFailed, match="exited with 1: E: Temporary failure resolving 'x'") as caught:
        await templates.build(
            tiny("offline", """echo "E: Temporary failure resolving 'x'"; echo gave up >&2; exit 1""")
        )
    assert "could not reach the network" in (caught.value.hint or "")


async def test_a_step_that_hangs_is_ended_by_the_timeout(templates: AsyncTemplates, skerry_home: Path) -> None:
    before = inventory.take(skerry_home)
    started = time.monotonic()
    with pytest.raises(TemplateBuildFailed, match="'script 1: sleep 1000' ran out of time"):
        await templates.build(tiny("hanging", "sleep 1000"), timeout=1)
    assert time.monotonic() - started < 60
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


async def test_a_step_that_floods_is_bounded(templates: AsyncTemplates) -> None:
    with pytest.raises(TemplateBuildFailed) as caught:
        await templates.build(tiny("flood", "yes words | head -c 50000000; echo the end; exit 1"))
    assert len(caught.value.log) <= 4000
    assert caught.value.log.endswith("the end\n")


@pytest.mark.may_skip
async def test_a_build_that_runs_out_of_disk_says_so_and_leaves_nothing(
    templates: AsyncTemplates, skerry_home: Path, small_disk: None
) -> None:
    before = inventory.take(skerry_home)
    with pytest.raises(DiskFull, match="dd if=/dev/zero"):
        await templates.build(tiny("large", "dd if=/dev/zero of=big bs=1M count=100"))
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


async def test_a_cancelled_build_leaves_nothing(templates: AsyncTemplates, skerry_home: Path) -> None:
    before = inventory.take(skerry_home)
    running = anyio.Event()

    def begin(text: str) -> None:
        running.set()

    task = asyncio.create_task(templates.build(tiny("cancelled", "echo go; sleep 1000"), on_log=begin))
    with anyio.fail_after(60):
        await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


async def test_a_wait_for_another_build_can_be_given_up(templates: AsyncTemplates) -> None:
    provider = registry.provider("local")
    assert isinstance(provider, LocalProvider)
    async with provider.building("b" * 40):
        with anyio.move_on_after(0.5) as scope:
            async with provider.building("b" * 40):
                pass
        assert scope.cancelled_caught
    with anyio.fail_after(30):
        async with provider.building("b" * 40):
            pass


async def test_two_who_want_the_same_build_it_once(templates: AsyncTemplates) -> None:
    steps: list[BuildProgress] = []
    template = tiny("wanted", "sleep 0.5; date +%N >stamp")
    builds = [templates.build(template, on_progress=steps.append) for _ in range(4)]
    first, *others = await asyncio.gather(*builds)
    assert others == [first] * 3
    assert len([step for step in steps if not step.step]) == 1


async def test_post_create_runs_once_and_post_start_in_the_background(templates: AsyncTemplates) -> None:
    scripts = Scripts(
        post_create=(Command("echo created >>said"), Command("id -un >>said", "root")),
        post_start=(Command("exec python3 -m http.server 8123"),),
    )
    template = tiny("server", scripts=scripts, ports=(8123,))
    sandbox = await AsyncSandbox.create(template=template)
    try:
        assert (await sandbox.files.read("said")).decode() == "created\nroot\n"
        assert (await sandbox.info()).leased_to is None
        await sandbox.ports.wait(8123, timeout=60)
        assert [process.command for process in await sandbox.processes.list()] == [
            "/bin/sh -c 'exec python3 -m http.server 8123'"
        ]
    finally:
        await sandbox.destroy()


async def test_services_start_with_every_start_and_in_every_copy(templates: AsyncTemplates) -> None:
    scripts = Scripts(post_create=(Command("echo created >>said"),), post_start=(Command("exec sleep 1000"),))

    async def services(sandbox: AsyncSandbox) -> list[str]:
        assert (await sandbox.files.read("said")).decode() == "created\n"
        return [process.command for process in await sandbox.processes.list()]

    expected = ["/bin/sh -c 'exec sleep 1000'"]
    async with await AsyncSandbox.create(template=tiny("service", scripts=scripts)) as sandbox:
        assert await services(sandbox) == expected
        await sandbox.stop()
        assert await services(sandbox) == expected  # this call has started it
        await sandbox.start()
        assert await services(sandbox) == expected
        await sandbox.restart()
        assert await services(sandbox) == expected
        await sandbox.reset()
        assert await services(sandbox) == expected
        await sandbox.exec("rm said; touch other", check=True)
        await sandbox.reset(hard=True)
        assert await services(sandbox) == expected
        assert (await sandbox.exec("ls")).stdout == "said\n"
        snapshot = await sandbox.snapshots.create()
        await sandbox.snapshots.restore(snapshot)
        assert await services(sandbox) == expected
        async with await sandbox.clone() as copy:
            assert await services(copy) == expected
            assert (await copy.info()).template_id == (await sandbox.info()).template_id
        async with await AsyncSandbox.create(snapshot=snapshot) as copy:
            assert await services(copy) == expected
        with pytest.raises(Conflict):
            await templates.remove("service")
        await sandbox.snapshots.delete(snapshot)


async def test_a_snapshot_keeps_its_template(templates: AsyncTemplates) -> None:
    async with await AsyncSandbox.create(template=tiny("kept", "echo built >file")) as sandbox:
        snapshot = await sandbox.snapshots.create("of-kept")
    with pytest.raises(Conflict, match="in use by snapshot"):
        await templates.remove("kept")
    async with await AsyncSandbox.create(snapshot="of-kept") as sandbox:
        assert (await sandbox.exec("cat file")).stdout == "built\n"
        assert (await sandbox.info()).template == "kept:1"
        await sandbox.snapshots.delete(snapshot)


async def test_restart_with_another_template_builds_it(templates: AsyncTemplates) -> None:
    async with await AsyncSandbox.create(template=tiny("sooner", "echo sooner >below")) as sandbox:
        await sandbox.exec("echo mine >own", check=True)
        with pytest.raises(TemplateNotFound):
            await sandbox.restart(template="later")
        await sandbox.restart(template=tiny("later", "echo later >below"))
        assert (await sandbox.exec("cat below own")).stdout == "later\nmine\n"
        assert (await sandbox.info()).template == "later:1"


async def test_a_post_create_that_fails_fails_the_create(templates: AsyncTemplates, skerry_home: Path) -> None:
    template = tiny("unready", scripts=Scripts(post_create=(Command("echo not today >&2; exit 3"),)))
    await templates.build(template)
    before = inventory.take(skerry_home)
    with pytest.raises(TemplateBuildFailed, match="not today") as caught:
        await AsyncSandbox.create(template="unready", name="never")
    assert caught.value.step.startswith("postCreate 1: echo not today")
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


async def test_the_same_create_again_prepares_nothing_twice(templates: AsyncTemplates) -> None:
    template = tiny("keyed", scripts=Scripts(post_create=(Command("echo once >>said; sleep 0.3"),)))
    await templates.build(template)
    made = await asyncio.gather(*(AsyncSandbox.create(template="keyed", idempotency_key="k1") for _ in range(3)))
    try:
        assert len({sandbox.id for sandbox in made}) == 1
        for sandbox in made:
            assert (await sandbox.files.read("said")).decode() == "once\n"
    finally:
        await made[0].destroy()


async def test_a_layer_that_nobody_names_is_swept(templates: AsyncTemplates, skerry_home: Path) -> None:
    provider = registry.provider("local")
    await templates.build(tiny("named", "touch file"))
    (path,) = (skerry_home / "templates").glob("*.json")
    path.unlink()
    (skerry_home / "templates" / f"{'a' * 40}.lock").touch()
    await provider.sweep()
    assert list((skerry_home / "pool/layers").iterdir()) == []
    assert list((skerry_home / "templates").glob("*.lock")) == []


async def test_the_list_has_what_is_built_and_what_could_be(templates: AsyncTemplates) -> None:
    await templates.build(tiny("listed", "true", description="Mine."))
    found = {info.name: info for info in await templates.list()}
    assert found["listed"].built
    assert found["listed"].description == "Mine."
    assert not found["debian"].built
    assert (found["host"].built, found["host"].digest) == (True, "")
    assert await templates.show("host") == found["host"]
    assert (await templates.show("listed:1")).built
    assert (await templates.show("nodejs")).name == "node"
    with pytest.raises(TemplateNotFound):
        await templates.show("nothing-like-it")
