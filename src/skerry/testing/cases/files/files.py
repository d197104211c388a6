"""Files: what is written is there, whole, with its modes, and what is wrong has a name."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import AsyncIterator

import anyio
import pytest

from skerry.core import (
    AlreadyExists,
    FileMissing,
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    NotAFile,
    NotEmpty,
    PermissionDenied,
    Provider,
    SymlinkLoop,
)
from skerry.sdk import AsyncSandbox
from skerry.testing.cases.base import Conformance, not_offered


class FilesConformance(Conformance):
    """Reading, writing, listing and changing files."""

    title = "files"

    @pytest.mark.parametrize("size", [0, 1, 18 * 1024 + 1, 65_536, 131_073, 5_000_003])
    async def test_what_is_written_is_there(self, size: int, sandbox: AsyncSandbox, directory: str) -> None:
        """opensandbox-group/OpenSandbox#1016: a write that says ok must have written, whatever its size."""
        data = os.urandom(size)
        info = await sandbox.files.write(f"{directory}/x", data)
        assert (info.size, info.type) == (size, "file")
        summed = await sandbox.exec(["sha256sum", f"{directory}/x"], check=True)
        assert summed.stdout.split()[0] == hashlib.sha256(data).hexdigest()
        assert await sandbox.files.read(f"{directory}/x") == data

    async def test_text_is_utf_8(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Text goes in and out unchanged, and what is not text is not guessed."""
        await sandbox.files.write(f"{directory}/t", "grüße\r\n\u2028€")
        assert await sandbox.files.read_text(f"{directory}/t") == "grüße\r\n\u2028€"
        await sandbox.files.write(f"{directory}/b", b"\xff")
        with pytest.raises(UnicodeDecodeError):
            await sandbox.files.read_text(f"{directory}/b")

    async def test_missing_directories_are_made_on_request_only(self, sandbox: AsyncSandbox, directory: str) -> None:
        """`parents=False` makes no directories."""
        await sandbox.files.write(f"{directory}/a/b/c", b"deep")
        assert await sandbox.files.read(f"{directory}/a/b/c") == b"deep"
        with pytest.raises(FileMissing):
            await sandbox.files.write(f"{directory}/no/such", b"", parents=False)
        assert not await sandbox.files.exists(f"{directory}/no")

    async def test_a_reader_sees_the_old_or_the_new_file(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A file is replaced in one step: nobody ever reads a part of it."""
        sizes = (100_000, 700_000)
        await sandbox.files.write(f"{directory}/x", bytes(sizes[0]))
        script = f"while [ ! -e {directory}/stop ]; do wc -c < {directory}/x; done | sort -un"
        async with sandbox.exec_stream(script) as stream:
            for number in range(20):
                await sandbox.files.write(f"{directory}/x", bytes(sizes[number % 2]))
            await sandbox.files.write(f"{directory}/stop", b"")
            seen = {int(line) async for line in stream.lines()}
        assert seen <= set(sizes)

    async def test_a_failed_write_leaves_the_old_content_and_no_rubbish(
        self, sandbox: AsyncSandbox, directory: str
    ) -> None:
        """A source that breaks in the middle changes nothing."""
        await sandbox.files.write(f"{directory}/x", b"old")

        async def broken() -> AsyncIterator[bytes]:
            yield bytes(300_000)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await sandbox.files.write(f"{directory}/x", broken())
        assert await sandbox.files.read(f"{directory}/x") == b"old"

        async def clean() -> bool:
            return [entry.path for entry in await sandbox.files.list(directory)] == ["x"]

        with anyio.fail_after(10):
            while not await clean():
                await anyio.sleep(0.01)

    async def test_a_stream_is_written_piece_by_piece(self, sandbox: AsyncSandbox, directory: str) -> None:
        """e2b-dev/E2B#1433: a source that does not fit in memory can be written."""
        pieces = [os.urandom(200_000) for _ in range(8)]

        async def source() -> AsyncIterator[bytes]:
            for piece in pieces:
                await anyio.sleep(0)
                yield piece

        await sandbox.files.write(f"{directory}/x", source())
        assert await sandbox.files.read(f"{directory}/x") == b"".join(pieces)

    async def test_a_file_is_read_in_parts(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Offset and length are exact; stopping early harms nothing."""
        data = os.urandom(1_000_000)
        await sandbox.files.write(f"{directory}/x", data)
        stream = sandbox.files.read_stream(f"{directory}/x", offset=123_456, length=500_001)
        assert b"".join([part async for part in stream]) == data[123_456:623_457]
        async for _ in sandbox.files.read_stream(f"{directory}/x"):
            break
        assert (await sandbox.exec("true")).ok

    async def test_a_huge_file_is_not_read_into_memory_by_mistake(self, sandbox: AsyncSandbox, directory: str) -> None:
        """langchain-ai/deepagents#4408: read() of something enormous must be refused, not end in a crash."""
        await sandbox.exec(["truncate", "-s", "8G", f"{directory}/huge"], check=True)
        with pytest.raises(InvalidArgument):
            await sandbox.files.read(f"{directory}/huge")
        with pytest.raises(InvalidArgument):
            await sandbox.files.read(f"{directory}/huge", max_bytes=1000)

    async def test_append_adds_to_the_end(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Appending works in place: the file stays the same one, and a missing one is made."""
        one = await sandbox.files.append(f"{directory}/log", b"one\n")
        two = await sandbox.files.append(f"{directory}/log", "two\n")
        assert await sandbox.files.read(f"{directory}/log") == b"one\ntwo\n"
        assert one.inode == two.inode

    async def test_a_mode_is_kept_and_a_new_one_is_exact(self, sandbox: AsyncSandbox, directory: str) -> None:
        """harbor-framework/harbor#2054: file modes must not be lost; no umask takes bits away."""
        assert (await sandbox.files.write(f"{directory}/new", b"")).mode == 0o644
        await sandbox.files.write(f"{directory}/x", b"#!/bin/sh\necho one", mode=0o777)
        assert (await sandbox.files.stat(f"{directory}/x")).mode == 0o777
        await sandbox.files.write(f"{directory}/x", b"#!/bin/sh\necho two")
        assert (await sandbox.files.stat(f"{directory}/x")).mode == 0o777
        assert (await sandbox.exec([f"{directory}/x"])).stdout == "two\n"

    async def test_chmod_sets_every_bit(self, sandbox: AsyncSandbox, directory: str) -> None:
        """What is set is what `stat` and the sandbox's own tools see."""
        await sandbox.files.write(f"{directory}/x", b"")
        for mode in (0o4711, 0o000, 0o640):
            assert (await sandbox.files.chmod(f"{directory}/x", mode)).mode == mode
        assert (await sandbox.exec(["stat", "-c", "%a", f"{directory}/x"])).stdout == "640\n"
        with pytest.raises(InvalidArgument):
            await sandbox.files.chmod(f"{directory}/x", 0o10000)

    async def test_what_is_written_belongs_to_the_sandbox_s_user(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A file that was written from outside can be used inside."""
        info = await sandbox.files.write(f"{directory}/x", b"1")
        assert info.owner == (await sandbox.info()).user
        assert (await sandbox.exec(f"echo 2 >> {directory}/x")).ok

    async def test_another_user_s_rights_are_that_user_s(self, sandbox: AsyncSandbox, directory: str) -> None:
        """`user` acts with the rights of that user, and the file is that user's."""
        if not (await sandbox.exec("id -u", user="root")).ok:
            not_offered("another user")
        await sandbox.files.write(f"{directory}/secret", b"x", mode=0o600, user="root")
        assert (await sandbox.files.stat(f"{directory}/secret")).uid == 0
        with pytest.raises(PermissionDenied):
            await sandbox.files.read(f"{directory}/secret", user="nobody")

    async def test_a_list_is_sorted_and_has_all(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A list is complete, also for a directory with very many entries and for an empty one."""
        assert await sandbox.files.list(directory) == []
        await sandbox.exec("seq 1 1200 | xargs touch", cwd=directory, check=True)
        names = [entry.path for entry in await sandbox.files.list(directory)]
        assert names == sorted(str(number) for number in range(1, 1201))

    async def test_depth_says_how_far_down_a_list_goes(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Paths are relative to what was listed; links are not followed."""
        await sandbox.files.write(f"{directory}/a/b/c", b"")
        await sandbox.files.symlink(f"{directory}/loop", ".")
        assert [entry.path for entry in await sandbox.files.list(directory)] == ["a", "loop"]
        assert [entry.path for entry in await sandbox.files.list(directory, depth=2)] == ["a", "a/b", "loop"]
        assert [entry.path for entry in await sandbox.files.list(directory, depth=9)] == ["a", "a/b", "a/b/c", "loop"]

    async def test_names_may_be_any_bytes(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Names are bytes: blanks, newlines and what is not UTF-8 included."""
        names = sorted([" lead", "new\nline", "-rf", "*", os.fsdecode(b"\xff\xfe"), "ü" * 100])
        for name in names:
            await sandbox.files.write(f"{directory}/{name}", os.fsencode(name))
        assert {entry.path for entry in await sandbox.files.list(directory)} == set(names)
        for name in names:
            assert await sandbox.files.read(f"{directory}/{name}") == os.fsencode(name)

    async def test_stat_says_what_is_there(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Type, size, times and, on request, the link itself."""
        await sandbox.files.write(f"{directory}/x", b"12345")
        await sandbox.files.symlink(f"{directory}/link", "x")
        info = await sandbox.files.stat(f"{directory}/link")
        assert (info.type, info.size) == ("file", 5)
        link = await sandbox.files.stat(f"{directory}/link", follow=False)
        assert (link.type, link.target) == ("link", "x")
        assert (await sandbox.files.stat(directory)).is_dir
        printed = await sandbox.exec(["stat", "-c", "%Y %i %u", f"{directory}/x"])
        assert printed.stdout.split() == [str(int(info.mtime)), str(info.inode), str(info.uid)]

    async def test_exists_tells_a_link_to_nothing_from_a_file(self, sandbox: AsyncSandbox, directory: str) -> None:
        """`exists` answers for what the name leads to."""
        await sandbox.files.symlink(f"{directory}/dangling", "nowhere")
        await sandbox.files.write(f"{directory}/x", b"")
        assert await sandbox.files.exists(f"{directory}/x")
        assert not await sandbox.files.exists(f"{directory}/dangling")
        assert not await sandbox.files.exists(f"{directory}/x/below")

    async def test_an_etag_changes_with_every_change(self, sandbox: AsyncSandbox, directory: str) -> None:
        """The same size a moment later is another version; nothing changes without a change."""
        one = (await sandbox.files.write(f"{directory}/x", b"1")).etag
        assert (await sandbox.files.stat(f"{directory}/x")).etag == one
        two = (await sandbox.files.write(f"{directory}/x", b"2")).etag
        await sandbox.exec(f"printf 34 > {directory}/x")
        three = (await sandbox.files.stat(f"{directory}/x")).etag
        assert len({one, two, three}) == 3

    async def test_rename_replaces_in_one_step_or_refuses(self, sandbox: AsyncSandbox, directory: str) -> None:
        """With `overwrite=False` an existing file stays."""
        await sandbox.files.write(f"{directory}/a", b"a")
        await sandbox.files.write(f"{directory}/b", b"b")
        with pytest.raises(AlreadyExists):
            await sandbox.files.rename(f"{directory}/a", f"{directory}/b", overwrite=False)
        assert await sandbox.files.read(f"{directory}/b") == b"b"
        await sandbox.files.rename(f"{directory}/a", f"{directory}/b")
        assert await sandbox.files.read(f"{directory}/b") == b"a"
        assert not await sandbox.files.exists(f"{directory}/a")

    async def test_remove_counts_and_does_not_follow_links(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A tree with a link out of it goes; what the link leads to stays."""
        await sandbox.files.write(f"{directory}/kept/file", b"kept")
        await sandbox.files.write(f"{directory}/tree/sub/file", b"")
        await sandbox.files.symlink(f"{directory}/tree/out", "../kept")
        with pytest.raises(NotEmpty):
            await sandbox.files.remove(f"{directory}/tree")
        assert await sandbox.files.remove(f"{directory}/tree", recursive=True) == 4
        assert await sandbox.files.read(f"{directory}/kept/file") == b"kept"

    async def test_mkdir_again_is_fine_unless_it_must_be_new(self, sandbox: AsyncSandbox, directory: str) -> None:
        """`parents=False` makes one directory, which must not exist yet."""
        await sandbox.files.mkdir(f"{directory}/a/b")
        await sandbox.files.mkdir(f"{directory}/a/b")
        with pytest.raises(AlreadyExists):
            await sandbox.files.mkdir(f"{directory}/a", parents=False)
        with pytest.raises(FileMissing):
            await sandbox.files.mkdir(f"{directory}/x/y", parents=False)

    async def test_overwrite_false_keeps_what_is_there(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Of many clients that create the same file at once, exactly one wins."""
        won: list[int] = []

        async def claim(number: int) -> None:
            try:
                await sandbox.files.write(f"{directory}/claim", str(number), overwrite=False)
                won.append(number)
            except AlreadyExists:
                pass

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(claim, number)
        assert len(won) == 1
        assert await sandbox.files.read_text(f"{directory}/claim") == str(won[0])

    async def test_each_wrong_thing_has_its_own_error(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A caller can tell them apart by type and also as Python's own errors."""
        await sandbox.exec("mkdir dir; touch file; mkfifo fifo; ln -s loop loop", cwd=directory, check=True)
        with pytest.raises(FileMissing) as missing:
            await sandbox.files.read(f"{directory}/nothing")
        assert isinstance(missing.value, FileNotFoundError)
        with pytest.raises(IsADirectory):
            await sandbox.files.read(f"{directory}/dir")
        with pytest.raises(NotADirectory):
            await sandbox.files.list(f"{directory}/file")
        with pytest.raises(NotADirectory):
            await sandbox.files.write(f"{directory}/file/below", b"")
        for operation in (sandbox.files.read, sandbox.files.stat, sandbox.files.list):
            with pytest.raises(OSError) as loop:
                await operation(f"{directory}/loop/below")
            assert isinstance(loop.value, SymlinkLoop) and loop.value.errno == errno.ELOOP
        with pytest.raises(SymlinkLoop):
            await sandbox.files.write(f"{directory}/loop", b"")
        with pytest.raises(SymlinkLoop):
            await sandbox.exec(["true"], cwd=f"{directory}/loop")
        for path in ("", "a\0b"):
            with pytest.raises(InvalidArgument):
                await sandbox.files.read(path)

    async def test_a_fifo_does_not_hang_a_reader(self, sandbox: AsyncSandbox, directory: str) -> None:
        """harbor-framework/harbor#2054: opening what is not a regular file must be refused, not wait for ever."""
        await sandbox.exec(["mkfifo", f"{directory}/fifo"], check=True)
        for operation in (sandbox.files.read, lambda path: sandbox.files.append(path, b"x")):
            with pytest.raises(NotAFile), anyio.fail_after(20):
                await operation(f"{directory}/fifo")

    async def test_many_files_at_once(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Writes and reads over one client do not mix up."""

        async def round_trip(number: int) -> None:
            data = str(number).encode() * 10_000
            await sandbox.files.write(f"{directory}/{number}", data)
            assert await sandbox.files.read(f"{directory}/{number}") == data

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(round_trip, number)

    async def test_a_file_outlives_its_client(self, sandbox: AsyncSandbox, directory: str, provider: Provider) -> None:
        """Another client finds what one has written."""
        await sandbox.files.write(f"{directory}/x", b"kept")
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        assert await other.files.read(f"{directory}/x") == b"kept"
        await other.close()
