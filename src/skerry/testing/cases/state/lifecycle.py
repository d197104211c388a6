"""Sandboxes come, are found, and go without a trace."""

from __future__ import annotations

import secrets
import time
from typing import Any

import anyio
import pytest

from skerry.core import (
    Conflict,
    Event,
    InvalidArgument,
    NotADirectory,
    Provider,
    SandboxNotFound,
    SnapshotNotFound,
    State,
    TemplateNotFound,
    Unsupported,
    new_sandbox_id,
)
from skerry.sdk import AsyncSandbox
from skerry.testing.cases.base import Conformance, Fresh, until


def unique(prefix: str = "case") -> str:
    return f"{prefix}-{secrets.token_hex(6)}"


class LifecycleConformance(Conformance):
    """create, get, find, list and destroy; names, metadata and idempotency keys."""

    title = "lifecycle"

    async def test_a_created_sandbox_runs_a_command_at_once(self, fresh: Fresh) -> None:
        """`create` returns when commands run, not when somebody has been asked to make it."""
        sandbox = await fresh()
        assert (await sandbox.exec("echo ready")).stdout == "ready\n"
        assert await sandbox.is_ready()

    async def test_info_says_what_was_asked_for(self, fresh: Fresh, provider: Provider) -> None:
        """Purpose, metadata, labels and the names of variables come back as given; times are of now."""
        before = time.time()
        sandbox = await fresh(purpose="review", metadata={"a": "1"}, labels={"b": "ü"}, env={"C": "x"}, timeout=100)
        info = await sandbox.info()
        assert (info.provider, info.state, info.purpose) == (provider.name, State.RUNNING, "review")
        assert (info.metadata, info.labels, info.env_names) == ({"a": "1"}, {"b": "ü"}, ("C",))
        assert before - 1 <= info.created_at <= time.time() + 1
        assert info.expires_at is not None
        assert abs(info.expires_at - info.created_at - 100) < 5

    async def test_the_values_of_variables_are_not_in_the_info(self, fresh: Fresh) -> None:
        """A secret given as a variable must not be in what lists and logs show."""
        sandbox = await fresh(env={"TOKEN": "s3cret-value"})
        assert "s3cret-value" not in repr(await sandbox.info())
        assert (await sandbox.exec("echo $TOKEN")).stdout == "s3cret-value\n"

    async def test_a_working_directory_that_is_missing_is_made_for_the_user(self, fresh: Fresh) -> None:
        """Commands start there, relative paths too, and the sandbox's user may write there."""
        above = f"/tmp/{unique()}"
        sandbox = await fresh(workdir=f"{above}/deep")
        assert (await sandbox.exec("pwd -P && echo hello > note && cat note")).stdout == f"{above}/deep\nhello\n"
        assert (await sandbox.files.read("note")) == b"hello\n"
        info = await sandbox.info()
        assert (await sandbox.files.stat(f"{above}/deep")).owner == info.user
        await sandbox.files.remove(above, recursive=True, user="root")

    async def test_a_working_directory_that_is_a_file_is_refused(self, fresh: Fresh) -> None:
        """No sandbox is left in which no command could run."""
        with pytest.raises(NotADirectory):
            await fresh(workdir="/etc/passwd")

    async def test_no_repr_has_a_secret(self, fresh: Fresh) -> None:
        """What shows a sandbox and its options may be logged; the names of secrets help, their values do not."""
        sandbox = await fresh(secrets={"TOKEN": "s3cret-value"})
        for shown in (repr(sandbox), repr(sandbox.config), str(sandbox.config), repr(await sandbox.info())):
            assert "s3cret-value" not in shown
        assert "'TOKEN': '***'" in repr(sandbox.config)
        assert sandbox.config.secrets == {"TOKEN": "s3cret-value"}
        assert sandbox.id in repr(sandbox)

    async def test_the_config_has_the_limits_that_were_granted(self, fresh: Fresh) -> None:
        """The caller can then ask for a multiple of them, also if it did not choose them."""
        sandbox = await fresh()
        assert sandbox.config.resources == (await sandbox.info()).resources

    async def test_it_is_found_by_id_and_by_name(self, fresh: Fresh, provider: Provider) -> None:
        """`get` takes ids, `find` and `connect` ids and names; all lead to the same sandbox."""
        name = unique()
        made = await fresh(name=name)
        await made.files.write("mark", b"this one")
        for found in (
            await AsyncSandbox.get(made.id, provider=provider),
            await AsyncSandbox.find(made.id, provider=provider),
            await AsyncSandbox.find(name, provider=provider),
            await AsyncSandbox.connect(name, provider=provider),
        ):
            assert (found.id, found.name) == (made.id, name)
            assert await found.files.read("mark") == b"this one"
            await found.close()

    async def test_one_that_is_not_there_is_not_found(self, provider: Provider) -> None:
        """An unknown id is a specific error, never an empty sandbox."""
        for call in (AsyncSandbox.get, AsyncSandbox.find, AsyncSandbox.connect):
            with pytest.raises(SandboxNotFound):
                await call(new_sandbox_id(), provider=provider)
            with pytest.raises(SandboxNotFound):
                await call("no-such-name", provider=provider)

    async def test_a_name_is_no_id(self, fresh: Fresh, provider: Provider) -> None:
        """`get` must not fall back to names: two sandboxes could answer."""
        name = unique()
        await fresh(name=name)
        with pytest.raises(SandboxNotFound):
            await provider.get(name)

    async def test_a_taken_name_is_a_conflict_and_makes_nothing(
        self, fresh: Fresh, provider: Provider, attempt: Fresh
    ) -> None:
        """The second sandbox of a name is refused; the first one is not touched."""
        name = unique()
        first = await fresh(name=name)
        before = {info.id for info in await provider.list()}
        with pytest.raises(Conflict):
            await attempt(name=name)
        assert {info.id for info in await provider.list()} == before
        assert (await first.exec("true")).ok

    async def test_a_name_is_free_again_after_destroy(self, fresh: Fresh) -> None:
        """A name belongs to a sandbox that lives."""
        name = unique()
        first = await fresh(name=name)
        await first.destroy()
        assert (await fresh(name=name)).id != first.id

    async def test_a_bad_name_is_refused_before_anything_is_made(self, provider: Provider, attempt: Fresh) -> None:
        """Names with slashes, blanks or the shape of an id are InvalidArgument."""
        before = {info.id for info in await provider.list()}
        for name in ("", "a/b", "../x", "two words", "UPPER", new_sandbox_id(), "x" * 64):
            with pytest.raises(InvalidArgument):
                await attempt(name=name)
        assert {info.id for info in await provider.list()} == before

    async def test_destroy_ends_it_for_everybody(self, fresh: Fresh, provider: Provider) -> None:
        """After destroy it is not found, not listed, and another client's calls say so instead of hanging."""
        sandbox = await fresh()
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        await sandbox.destroy()
        with pytest.raises(SandboxNotFound):
            await provider.get(sandbox.id)
        assert sandbox.id not in {info.id for info in await provider.list()}
        for one in (sandbox, other):
            with pytest.raises(SandboxNotFound):
                await one.exec("true")
        await other.close()

    async def test_destroying_twice_is_no_error(self, fresh: Fresh, provider: Provider) -> None:
        """docker/sbx-releases#353: a clean-up that was cut short must not make a sandbox that nobody can remove."""
        sandbox = await fresh()
        await sandbox.destroy()
        await sandbox.destroy()
        await provider.destroy(sandbox.id)
        await provider.destroy(new_sandbox_id())

    async def test_destroy_does_not_wait_for_what_runs(self, fresh: Fresh) -> None:
        """vndee/llm-sandbox#146: work that ignores every polite signal must not hold up its sandbox's end."""
        sandbox = await fresh()
        await sandbox.processes.spawn("trap '' TERM HUP INT; while :; do sleep 1; done")
        began = time.monotonic()
        await sandbox.destroy()
        assert time.monotonic() - began < 20

    async def test_a_lost_answer_and_a_retry_make_one_sandbox(self, fresh: Fresh, provider: Provider) -> None:
        """harbor-framework/harbor#2655: a create that is repeated with its key must not make a duplicate."""
        key, before = unique("key"), len(await provider.list())
        first = await fresh(idempotency_key=key, metadata={"a": "1"})
        again = await fresh(idempotency_key=key, metadata={"a": "1"})
        assert again.id == first.id
        assert len(await provider.list()) == before + 1

    async def test_two_creates_with_one_key_at_once_make_one_sandbox(self, fresh: Fresh) -> None:
        """harbor-framework/harbor#2655: also when the retry overtakes the first call."""
        key = unique("key")
        made: list[str] = []

        async def create() -> None:
            made.append((await fresh(idempotency_key=key)).id)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(create)
        assert len(set(made)) == 1

    async def test_a_key_used_for_something_else_is_a_conflict(
        self, fresh: Fresh, provider: Provider, attempt: Fresh
    ) -> None:
        """The same key with other options must not return a sandbox that was not asked for."""
        key = unique("key")
        await fresh(idempotency_key=key, metadata={"a": "1"})
        with pytest.raises(Conflict):
            await attempt(idempotency_key=key, metadata={"a": "2"})

    async def test_what_does_not_exist_is_refused_not_replaced(self, provider: Provider, attempt: Fresh) -> None:
        """computesdk/computesdk#741: an unknown snapshot or template must not become a healthy empty sandbox."""
        before = {info.id for info in await provider.list()}
        for wrong in ({"snapshot": "snap-nothing"}, {"template": "no-such-template"}, {"isolation": "no-such-level"}):
            with pytest.raises((Unsupported, InvalidArgument, SnapshotNotFound, TemplateNotFound)):
                await attempt(**wrong)
        assert {info.id for info in await provider.list()} == before

    async def test_a_new_sandbox_has_nothing_of_an_earlier_one(self, fresh: Fresh) -> None:
        """opensandbox-group/OpenSandbox#743, xiaods/k8e#600: neither files nor processes of another tenant."""
        mark = unique("mark")
        first = await fresh()
        await first.files.write("left", b"over")
        await first.env.set("LEFT", mark)
        await first.processes.spawn(["sleep", "1000"])
        await first.destroy()
        second = await fresh()
        assert await second.files.list() == []
        assert await second.processes.list() == []
        assert await second.env.get("LEFT") is None

    async def test_two_sandboxes_do_not_see_each_other_s_files(self, fresh: Fresh) -> None:
        """The same relative path is another file in each."""
        one, two = await fresh(), await fresh()
        await one.files.write("x", b"one")
        assert not await two.files.exists("x")
        await two.files.write("x", b"two")
        assert await one.files.read("x") == b"one"

    async def test_creates_at_once_all_work_and_all_go(self, fresh: Fresh, provider: Provider) -> None:
        """cloudflare/sandbox-sdk#794: concurrent creation must neither fail nor leave orphans."""
        before = {info.id for info in await provider.list()}
        made: list[AsyncSandbox] = []

        async def create(number: int) -> None:
            sandbox = await fresh()
            assert (await sandbox.exec(f"echo {number}")).stdout == f"{number}\n"
            made.append(sandbox)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(create, number)
        assert {info.id for info in await provider.list()} - before == {sandbox.id for sandbox in made}
        async with anyio.create_task_group() as group:
            for sandbox in made:
                group.start_soon(sandbox.destroy)
        assert {info.id for info in await provider.list()} <= before

    async def test_a_cancelled_create_leaves_nothing(self, provider: Provider, options: dict[str, Any]) -> None:
        """vndee/llm-sandbox#146: a create that its caller gave up must not leave a sandbox running."""
        before = {info.id for info in await provider.list()}
        for delay in (0.0, 0.002, 0.01):
            sandbox: AsyncSandbox | None = None
            with anyio.move_on_after(delay):
                sandbox = await AsyncSandbox.create(provider, **options)
            if sandbox is not None:
                await sandbox.destroy()
        assert {info.id for info in await provider.list()} == before

    async def test_with_destroys_also_when_the_body_fails(self, fresh: Fresh, provider: Provider) -> None:
        """electric-sql/electric#4513: leaving the block by an error must not leave the sandbox."""
        sandbox = await fresh()

        async def fail() -> None:
            async with sandbox:
                await sandbox.exec("true")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        with pytest.raises(SandboxNotFound):
            await provider.get(sandbox.id)

    async def test_sweeping_takes_nothing_that_lives(self, fresh: Fresh, provider: Provider) -> None:
        """NousResearch/hermes-agent#29123: a reaper must know what is in use, and take only what is not."""
        sandbox = await fresh()
        assert sandbox.id not in await provider.sweep()
        assert (await sandbox.exec("true")).ok


class ListingConformance(Conformance):
    """Lists, pages, usage and events."""

    title = "listing"

    async def test_list_is_oldest_first_and_has_what_get_has(self, fresh: Fresh, provider: Provider) -> None:
        """A list is a snapshot of the same data, in the order of creation."""
        tag = unique()
        made = [await fresh(labels={"tag": tag}) for _ in range(3)]
        page = await AsyncSandbox.list(labels={"tag": tag}, provider=provider)
        assert [info.id for info in page] == [sandbox.id for sandbox in made]
        for info in page:
            assert (await provider.get(info.id)).created_at == info.created_at

    async def test_filters_must_all_match(self, fresh: Fresh, provider: Provider) -> None:
        """Metadata, labels and state narrow the list down together."""
        tag = unique()
        one = await fresh(labels={"tag": tag}, metadata={"n": "1"})
        await fresh(labels={"tag": tag}, metadata={"n": "2"})
        found = await AsyncSandbox.list(labels={"tag": tag}, metadata={"n": "1"}, provider=provider)
        assert [info.id for info in found] == [one.id]
        none = await AsyncSandbox.list(labels={"tag": tag}, state=State.FAILED, provider=provider)
        assert len(none) == 0

    async def test_pages_cover_everything_once(self, fresh: Fresh, provider: Provider) -> None:
        """Following the cursor shows each sandbox exactly once, also when one of them is destroyed in between."""
        tag = unique()
        made = [await fresh(labels={"tag": tag}) for _ in range(4)]
        first = await AsyncSandbox.list(labels={"tag": tag}, provider=provider, limit=2)
        assert [info.id for info in first] == [sandbox.id for sandbox in made[:2]]
        await made[0].destroy()
        second = await AsyncSandbox.list(labels={"tag": tag}, provider=provider, limit=2, cursor=first.cursor)
        assert [info.id for info in second] == [sandbox.id for sandbox in made[2:]]
        assert second.cursor is None

    async def test_a_wrong_cursor_limit_or_state_is_refused(self, provider: Provider) -> None:
        """An option that makes no sense must not be answered with an empty list."""
        for wrong in ({"cursor": "nonsense"}, {"limit": 0}, {"state": "sleeping"}):
            with pytest.raises(InvalidArgument):
                await AsyncSandbox.list(provider=provider, **wrong)

    async def test_events_begin_with_created_and_ready_and_end_with_destroyed(self, fresh: Fresh) -> None:
        """A client that follows the events of a sandbox learns of its end."""
        sandbox = await fresh()
        seen: list[Event] = []
        async for event in sandbox.events():
            seen.append(event)
            if event.type == "ready":
                await sandbox.destroy()
        assert [event.type for event in seen if event.type in ("created", "ready")] == ["created", "ready"]
        assert seen[-1].type == "destroyed"
        assert {event.sandbox_id for event in seen} == {sandbox.id}

    async def test_events_after_a_cursor_do_not_repeat(self, fresh: Fresh, provider: Provider) -> None:
        """A follower that comes back with its last cursor gets what is new, and cursors ascend."""
        sandbox = await fresh()
        cursors = [event.cursor for event in await provider.events(sandbox.id)]
        assert cursors == sorted(set(cursors))
        assert await provider.events(sandbox.id, since=cursors[-1]) == []
        assert [event.cursor for event in await provider.events(sandbox.id, since=cursors[0])] == cursors[1:]

    async def test_events_and_usage_of_nobody_are_not_found(self, provider: Provider) -> None:
        """An unknown sandbox has no usage of zero and no empty history."""
        with pytest.raises(SandboxNotFound):
            await provider.events(new_sandbox_id())
        with pytest.raises(SandboxNotFound):
            await provider.usage(new_sandbox_id())
        with pytest.raises(SandboxNotFound):
            await provider.dial(new_sandbox_id())

    async def test_usage_is_measured(self, sandbox: AsyncSandbox) -> None:
        """daytonaio/daytona#2553: what a sandbox uses can be asked; work shows in it."""
        before = await sandbox.usage()
        await sandbox.exec("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")

        async def shows() -> bool:
            return (await sandbox.usage()).cpu_seconds > before.cpu_seconds

        await until(shows)
        after = await sandbox.usage()
        assert after.memory_used > 0
        assert after.disk_used is not None and after.disk_total is not None
        assert 0 <= after.disk_used <= after.disk_total

    async def test_status_has_state_uptime_and_usage(self, sandbox: AsyncSandbox) -> None:
        """One call says how a sandbox is doing."""
        status = await sandbox.status()
        assert status.state is State.RUNNING
        assert status.uptime >= 0
        assert status.usage is not None
