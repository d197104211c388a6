"""What every database of a server keeps, in the words of the contract alone."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from pathlib import Path

import pytest

from skerry.core import Conflict, InvalidArgument, NotFound, new_sandbox_id
from skerry.server.access.permissions import Role, Scope
from skerry.server.store import Belonging, Lease, Store
from tests.server.store.places import Place, entry, event, is_equal, sandbox

SOURCE = Path(__file__).parents[3] / "src/skerry"


# -- accounts


@pytest.mark.anyio
async def test_a_user_has_a_name_of_their_own_and_a_project(place: Place) -> None:
    async with place.open() as store:
        mira = await store.users.add("mira", password="hash", admin=True)
        (project,) = store.accounts.projects_of(mira.id)
        assert store.accounts.role(project.id, mira.id) is Role.OWNER and project.personal_of == mira.id
        assert await store.users.password("mira") == ("hash", mira) and await store.users.password("nia") is None
        with pytest.raises(Conflict, match="taken by another"):
            await store.users.add("mira")
        with pytest.raises(Conflict, match="no administrator"):
            await store.users.change(mira.id, disabled=True)
        assert store.accounts.user(mira.id) == mira
        with pytest.raises(NotFound):
            store.accounts.find_user("nobody")
        await is_equal(store, place)


@pytest.mark.anyio
async def test_what_belongs_to_a_user_goes_with_them(place: Place) -> None:
    async with place.open() as store:
        await store.users.add("admin", admin=True)
        mira = await store.users.add("mira")
        (own,) = store.accounts.projects_of(mira.id)
        key, text = await store.keys.add(mira.id, "laptop")
        await store.users.add_session(mira.id, b"hash", lifetime=60, address="")
        assert store.accounts.check_key(text) == key and store.accounts.session(b"hash") is not None
        await store.users.remove(mira.id)
        assert store.accounts.check_key(text) is store.accounts.key(key.id) is store.accounts.session(b"hash") is None
        assert store.accounts.project(own.id) == dataclasses.replace(own, personal_of=None)
        await is_equal(store, place)


@pytest.mark.anyio
async def test_what_belongs_to_a_project_goes_with_it(place: Place) -> None:
    async with place.open() as store:
        owner, guest = await store.users.add("owner", admin=True), await store.users.add("guest")
        team, box = await store.projects.add("team", owner.id), new_sandbox_id()
        await store.projects.set_member(team.id, guest.id, Role.READ)
        assert store.accounts.share_project(owner.id, guest.id)
        _, key = await store.keys.add(owner.id, "k", scopes=frozenset({Scope.READ}), project_id=team.id)
        _, token = await store.keys.add_token(box, team.id, Role.READ, created_by="user:owner", expires_at=None)
        hook = await store.webhooks.add(team.id, "https://x", "s", ("created",), created_by="user:owner", since=0)
        await store.ownership.put([sandbox(box, team.id, "box")])
        with pytest.raises(Conflict, match="still has 1 sandbox"):
            await store.projects.remove(team.id)
        await store.ownership.gone("sandbox", [box])
        await store.projects.remove(team.id)
        assert store.accounts.check_key(key) is store.accounts.check_token(token) is None
        assert await store.webhooks.get(team.id, hook.id) is None
        assert not store.accounts.share_project(owner.id, guest.id)
        await is_equal(store, place)


@pytest.mark.anyio
async def test_a_project_keeps_an_owner(place: Place) -> None:
    async with place.open() as store:
        one, other = await store.users.add("one", admin=True), await store.users.add("other")
        team = await store.projects.add("team", one.id)
        await store.projects.set_member(team.id, other.id, Role.WRITE)
        for role in (None, Role.READ):
            with pytest.raises(Conflict, match="no owner"):
                await store.projects.set_member(team.id, one.id, role)
        assert store.accounts.role(team.id, one.id) is Role.OWNER
        await store.projects.set_member(team.id, other.id, Role.OWNER)
        await store.projects.set_member(team.id, one.id, None)
        assert [member.user_name for member in store.accounts.members(team.id)] == ["other"]
        await is_equal(store, place)


@pytest.mark.anyio
async def test_a_row_that_refers_to_nothing_is_a_conflict(place: Place) -> None:
    async with place.open() as store:
        mira = await store.users.add("mira", admin=True)
        await store.users.add_session(mira.id, b"hash", lifetime=60, address="")
        before = store.accounts.rows()
        for write in (
            store.projects.add("team", "us-nobody"),
            store.keys.add("us-nobody", "k"),
            store.keys.add_token("sb-00000000", "pj-nothing", Role.READ, created_by="", expires_at=None),
            store.webhooks.add("pj-nothing", "https://x", "s", (), created_by="", since=0),
            store.users.add_session(mira.id, b"hash", lifetime=60, address=""),  # there is one already
        ):
            with pytest.raises(Conflict):
                await write
        assert store.accounts.rows() == before
        await is_equal(store, place)


@pytest.mark.anyio
async def test_sessions_keys_and_tokens_end_in_time(place: Place) -> None:
    async with place.open() as store:
        mira = await store.users.add("mira", admin=True)
        (own,) = store.accounts.projects_of(mira.id)
        ends = time.time() + 1.0
        await store.users.add_session(mira.id, b"hash", lifetime=60, address="")
        await store.users.extend_session(b"hash", ends)
        _, key = await store.keys.add(mira.id, "k", expires_at=ends)
        _, token = await store.keys.add_token("sb-00000000", own.id, Role.READ, created_by="", expires_at=ends)

        def valid() -> list[bool]:
            accounts = store.accounts
            found = (accounts.session(b"hash"), accounts.check_key(key), accounts.check_token(token))
            return [item is not None for item in found]

        assert valid() == [True, True, True] and store.accounts.session(b"hash") == (mira, ends)
        assert store.accounts.check_key(f"{key}x") is store.accounts.check_token(key) is None
        while time.time() <= ends:
            await asyncio.sleep(0.01)
        assert valid() == [False, False, False]
        await store.users.add_session(mira.id, b"next", lifetime=60, address="")  # removes those that have ended
        await is_equal(store, place)


@pytest.mark.anyio
async def test_a_link_is_used_once(place: Place) -> None:
    async with place.open() as store:
        mira = await store.users.add("mira", admin=True)
        await store.users.add_link(mira.id, b"link", lifetime=60)
        await store.users.add_link(mira.id, b"late", lifetime=-1)
        found = await asyncio.gather(*(store.users.use_link(b"link") for _ in range(10)))
        assert [user for user in found if user is not None] == [mira]
        assert await store.users.use_link(b"late") is None


@pytest.mark.anyio
async def test_the_use_of_a_key_is_noted_now_and_then(place: Place) -> None:
    async with place.open() as store:
        mira = await store.users.add("mira", admin=True)
        key, text = await store.keys.add(mira.id, "k")
        await store.keys.note_use(key)
        noted = store.accounts.check_key(text)
        assert noted is not None and noted.last_used_at is not None
        await store.keys.note_use(noted)
        assert store.accounts.key(key.id) == noted
        await is_equal(store, place)


# -- what belongs to projects


@pytest.mark.anyio
async def test_a_thing_that_is_gone_leaves_the_view_and_stays_in_the_database(place: Place) -> None:
    async with place.open() as store:
        one, other = new_sandbox_id(), new_sandbox_id()
        made = sandbox(one, "pj-1", "box", made_by="us-1")
        await store.ownership.put([made, sandbox(other, None, "box")])
        assert store.accounts.owned("sandbox", one) == await store.ownership.get("sandbox", one) == made
        assert [item.id for item in store.accounts.named("sandbox", "pj-1", "box")] == [one]
        assert [item.id for item in store.accounts.named("sandbox", None, "box")] == [other]
        await store.ownership.gone("sandbox", [one])
        assert store.accounts.owned("sandbox", one) is None
        assert await store.ownership.get("sandbox", one) == dataclasses.replace(made, gone=True)
        await store.ownership.put([dataclasses.replace(made, name="again", provider="elsewhere", made_by=None)])
        assert store.accounts.owned("sandbox", one) == dataclasses.replace(made, name="again", provider="elsewhere")
        assert store.accounts.named("sandbox", "pj-1", "box") == []
        await is_equal(store, place)


@pytest.mark.anyio
async def test_the_first_claim_of_a_name_wins_until_it_is_gone(place: Place) -> None:
    async with place.open() as store:
        items = [
            Belonging(kind="template", id="base", provider="local", project_id=f"pj-{n}", name="base") for n in range(8)
        ]
        won = set(await asyncio.gather(*(store.ownership.claim(item) for item in items)))
        assert len(won) == 1 and store.accounts.owned("template", "base") in won
        await store.ownership.gone("template", ["base"])
        assert await store.ownership.claim(items[3]) == items[3]
        await is_equal(store, place)


@pytest.mark.anyio
async def test_a_later_holder_takes_a_lease_over(place: Place) -> None:
    async with place.open() as store:
        lease = Lease(kind="sandbox", id="sb-00000000", holder="first", process=1, preparing=True)
        await store.leases.put(lease)
        await store.leases.put(dataclasses.replace(lease, holder="second", process=2, preparing=False))
        assert store.accounts.leases() == [dataclasses.replace(lease, holder="second", process=2)]
        await is_equal(store, place)
        await store.leases.remove("sandbox", lease.id)
        assert store.accounts.lease("sandbox", lease.id) is None


# -- events, audit, webhooks, secrets, copies


@pytest.mark.anyio
async def test_events_have_one_order_and_are_stored_once(place: Place) -> None:
    async with place.open() as store:
        a, b = new_sandbox_id(), new_sandbox_id()
        assert (await store.events.first(), await store.events.last(), await store.events.cursor(a)) == (1, 0, 0)
        assert await store.events.add("pj-1", [event(a, 1), event(a, 2, "stopped")]) == 2
        assert await store.events.add("pj-2", [event(b, 1, at=1.0)]) == 1
        assert await store.events.add("pj-1", [event(a, 2, "stopped"), event(a, 3, "destroyed")]) == 1
        stored = await store.events.after(0)
        assert [(item.sandbox_id, item.type) for item in stored] == [
            (a, "created"), (a, "stopped"), (b, "created"), (a, "destroyed"),
        ]  # fmt: skip
        assert [item.seq for item in stored] == sorted({item.seq for item in stored})
        assert stored[0].data == {"n": "1"} and await store.events.last() == stored[-1].seq
        assert await store.events.after(stored[0].seq, limit=1) == stored[1:2]
        assert (
            await store.events.after(0, projects=["pj-2"]) == await store.events.after(0, sandbox_id=b) == [stored[2]]
        )
        assert await store.events.after(0, types=["stopped", "destroyed"]) == [stored[1], stored[3]]
        assert await store.events.after(0, projects=[]) == []
        assert await store.events.of_sandbox(a) == stored[3]
        assert await store.events.prune(3600.0) == 1 and await store.events.cursor(b) == 1
        assert await store.events.prune(-60.0) == 3
        assert await store.events.first() == await store.events.last() + 1 == stored[-1].seq + 1
        assert await store.events.cursor(a) == 3  # what is pruned is not collected again


@pytest.mark.anyio
async def test_the_audit_is_read_backwards_in_pages(place: Place) -> None:
    async with place.open() as store:
        await store.audit.add([entry(f"{n}", f"pj-{n % 2}") for n in range(10)])
        await store.audit.add([entry("old", at=1.0)])
        newest = await store.audit.before(None, limit=4)
        assert [item.operation for item in newest] == ["old", "9", "8", "7"]
        rest = await store.audit.before(newest[-1].seq, limit=100)
        assert [item.operation for item in rest] == [f"{n}" for n in range(6, -1, -1)]
        assert [item.operation for item in await store.audit.before(None, project_id="pj-1", limit=2)] == ["9", "7"]
        assert await store.audit.prune(3600.0) == 1 and len(await store.audit.before(None)) == 10


@pytest.mark.anyio
async def test_a_webhook_is_due_when_events_came_after_it(place: Place) -> None:
    async with place.open() as store:
        mira = await store.users.add("mira", admin=True)
        (own,) = store.accounts.projects_of(mira.id)
        hook = await store.webhooks.add(own.id, "https://x", "s", ("created",), created_by="user:mira", since=0)
        assert await store.webhooks.of_project(own.id) == [await store.webhooks.get(own.id, hook.id)] == [hook]
        assert await store.webhooks.due(time.time()) == []
        await store.events.add(own.id, [event(new_sandbox_id(), 1)])
        assert await store.webhooks.due(time.time()) == [hook]
        later = time.time() + 60
        await store.webhooks.progress(hook.id, 0, attempts=2, next_at=later, status="500", dropped=1)
        assert await store.webhooks.due(time.time()) == []
        (found,) = await store.webhooks.due(later)
        assert (found.attempts, found.last_status, found.dropped) == (2, "500", 1)
        assert not await store.webhooks.remove("pj-other", hook.id) and await store.webhooks.remove(own.id, hook.id)


@pytest.mark.anyio
async def test_a_secret_outlives_the_process(place: Place) -> None:
    async with place.open() as store, place.open() as other:
        found = await asyncio.gather(*(each.secret("s") for each in (store, other, store, other)))
        assert len({*found}) == 1 and len(found[0]) == 32 and await store.secret("t") != found[0]


@pytest.mark.anyio
async def test_a_copy_is_dated(place: Place) -> None:
    async with place.open() as store:
        assert await store.backed_up_at() is None
        await store.back_up(keep=2)
        taken = await store.backed_up_at()
        assert taken is not None and abs(time.time() - taken) < 10


# -- opening, and the walls


@pytest.mark.parametrize("where", ["oracle://host/db", "postgres://host/db"])
def test_an_unknown_kind_of_database_is_refused_with_those_there_are(where: str) -> None:
    with pytest.raises(InvalidArgument, match="no kind of database") as refusal:
        Store.open(where)
    assert "sqlite://" in refusal.value.hint


@pytest.mark.anyio
async def test_a_database_is_opened_by_its_url_too(tmp_path: Path) -> None:
    async with Place(f"sqlite://{tmp_path}/skerry.db").open() as store:
        await store.users.add("mira", admin=True)
        await is_equal(store, Place(tmp_path / "skerry.db"))


def test_nothing_but_the_room_of_a_database_knows_its_language() -> None:
    sql = re.compile(
        r"\bsqlite3\b|IntegrityError|\bSELECT \S|\bINSERT (OR|INTO)|\bDELETE FROM|\bUPDATE \w+ SET|\bPRAGMA\b"
    )
    room = SOURCE / "server/store/sqlite"
    found = {path for path in (SOURCE / "server").rglob("*.py") if sql.search(path.read_text())}
    assert {path for path in found if not path.is_relative_to(room)} == set() and len(found) > 5
