"""The accounts in memory are what the database has, whoever writes and however a write ends."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.core import Conflict, DiskFull
from skerry.server.access.permissions import Role
from skerry.server.store import Lease, Store
from tests.server.store.places import PLACES, Place, answers, is_equal, sandbox
from tests.server.store.test_damage import fill_up

BOXES = [f"sb-0000000{number}" for number in range(4)]


async def step(store: Store, numbers: list[int]) -> None:
    """One operation of any kind; what it refers to may exist, or not."""
    turn, accounts, users = iter(cycle(numbers)), store.accounts, store.users

    def pick(*among: Any) -> Any:
        return among[next(turn) % len(among)]

    def user() -> str:
        return str(pick("us-nobody", *(user.id for user in accounts.users())))

    def project() -> str:
        return str(pick("pj-nothing", *(project.id for project in accounts.projects())))

    keys = [key.id for user in accounts.users() for key in accounts.keys_of(user.id)]
    tokens = [token.id for box in BOXES for token in accounts.tokens_of(box)]
    hashes, flags, box = (b"1", b"2", b"3"), (None, True, False), pick(*BOXES)
    match pick(*range(18)):
        case 0 | 1:
            await users.add(pick("ann", "bob", "cy", "dee"), admin=pick(True, False))
        case 2:
            await users.change(user(), admin=pick(*flags), disabled=pick(*flags), password=pick(None, "x"))
        case 3:
            await users.remove(user())
        case 4 | 5:
            await users.add_session(user(), pick(*hashes), lifetime=pick(-5.0, 60.0), address="")
        case 6:
            await users.extend_session(pick(*hashes), time.time() + 90)
        case 7:
            await (users.end_session(pick(*hashes)) if pick(True, False) else users.end_sessions(user()))
        case 8:
            await store.projects.add(pick("red", "blue"), user())
        case 9 | 10:
            await store.projects.set_member(project(), user(), pick(*Role, None))
        case 11:
            await store.projects.rename(project(), pick("red", "green"))
        case 12:
            await store.projects.remove(project())
        case 13:
            await store.keys.add(user(), "k", project_id=pick(None, project()))
        case 14:
            await store.keys.add_token(box, project(), Role.WRITE, created_by="", expires_at=pick(None, 5.0))
        case 15:
            await store.keys.remove(pick("none", *keys))
            await store.keys.remove_token(box, pick("none", *tokens))
        case 16:
            items = [sandbox(each, pick(None, project()), pick(None, "a", "b")) for each in BOXES]
            await store.ownership.put(items[: pick(1, 4)])
        case 17:
            await store.ownership.gone("sandbox", [box])
            await store.ownership.claim(sandbox(pick(*BOXES), project(), "c"))
            await store.leases.put(Lease(kind="sandbox", id=box, holder=pick("x", "y"), process=1))
            await store.leases.remove("sandbox", pick(*BOXES))


STEP = st.tuples(st.booleans(), st.lists(st.integers(0, 720_719), min_size=10, max_size=10))
"""Whether the other process does it, and by which numbers it is chosen."""


@pytest.mark.parametrize("kind", sorted(PLACES))
@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEP, min_size=5, max_size=30))
def test_the_view_is_what_the_database_has_after_any_operations(
    kind: str, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, list[int]]]
) -> None:
    """Also after those of another process, and after those that were refused."""

    async def run() -> None:
        place = Place(PLACES[kind](tmp_path_factory.mktemp("store")))
        async with place.open() as mine, place.open() as theirs:
            await mine.users.add("root", admin=True)
            for other, numbers in steps:
                writer, reader = (theirs, mine) if other else (mine, theirs)
                await writer.refresh()
                with suppress(Conflict):
                    await step(writer, numbers)
                await reader.refresh()  # loads everything again, if anything was written
                assert writer.accounts.rows() == reader.accounts.rows()
                assert answers(writer.accounts) == answers(reader.accounts)
            await is_equal(mine, place)

    asyncio.run(run())


@pytest.mark.anyio
async def test_changes_reach_the_view_in_the_order_of_their_commits(place: Place) -> None:
    async with place.open() as store:
        owner, guest = await store.users.add("owner", admin=True), await store.users.add("guest")
        team, roles = await store.projects.add("team", owner.id), [*Role, None]

        async def write(number: int) -> None:
            for step in range(25):
                role = roles[(number + step) % len(roles)]
                await store.projects.set_member(team.id, guest.id, role)
                await store.ownership.put([sandbox(f"sb-0000000{step % 3}", team.id, f"n{number}")])

        await asyncio.gather(*(write(number) for number in range(8)))
        await is_equal(store, place)


@pytest.mark.anyio
async def test_a_write_is_in_the_view_when_it_returns(place: Place) -> None:
    async with place.open() as store, place.open() as other:
        for number in range(20):
            await other.users.add(f"theirs{number}", admin=True)  # in between: then all is loaded again
            made = await store.users.add(f"mine{number}", admin=True)
            assert store.accounts.find_user(f"mine{number}") == made
            assert store.accounts.find_user(f"theirs{number}").admin
        assert await other.refresh() and not await other.refresh()
        await is_equal(other, place)


@pytest.mark.anyio
async def test_a_write_whose_caller_is_cancelled_is_in_the_view_too(place: Place) -> None:
    async with place.open() as store:
        tasks = [asyncio.create_task(store.users.add(f"user{number}", admin=True)) for number in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.users.add("last")
        assert {user.name for user in store.accounts.users()} >= {f"user{number}" for number in range(1, 20, 2)}
        await is_equal(store, place)


@pytest.mark.anyio
async def test_several_processes_write_at_once(place: Place) -> None:
    async with place.open() as one, place.open() as other:
        await one.users.add("root", admin=True)
        await asyncio.gather(*(store.users.add(f"user{n}") for n in range(30) for store in ((one, other)[n % 2],)))
        await one.refresh()
        await other.refresh()
        assert len(one.accounts.users()) == 31 and one.accounts.rows() == other.accounts.rows()
        await is_equal(one, place)


@pytest.mark.anyio
async def test_a_store_follows_what_other_processes_write(place: Place) -> None:
    async with place.open() as store, place.open() as other:
        following = asyncio.create_task(store.follow())
        mira = await other.users.add("mira", admin=True)
        async with asyncio.timeout(5):
            while store.accounts.user(mira.id) is None:
                await asyncio.sleep(0.02)
        following.cancel()
        await asyncio.wait([following])


@pytest.mark.parametrize("kind", sorted(PLACES))
@pytest.mark.anyio
async def test_a_write_that_finds_no_room_changes_neither(small: Path, kind: str) -> None:
    place, ballast = Place(PLACES[kind](small)), small / "ballast"
    async with place.open() as store:
        owner, made, refused = await store.users.add("owner", admin=True), [], 0
        with pytest.raises(OSError, match="No space"):
            fill_up(ballast)
        for number in range(60):
            try:
                made.append((await store.projects.add(f"{number}" + "x" * 2000, owner.id)).id)
            except DiskFull:
                refused += 1
        assert refused
        ballast.unlink()
        assert {project.id for project in store.accounts.projects_of(owner.id) if not project.personal_of} == {*made}
        await is_equal(store, place)
        await store.projects.add("there is room again", owner.id)
        await is_equal(store, place)
