"""State as a file, and cold archives: what comes back is what went in, or an error says why not."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from skerry.core import (
    Archivable,
    Corrupted,
    InvalidArgument,
    Portable,
    Provider,
    SandboxNotFound,
    SkerryWarning,
    State,
    Unauthenticated,
    new_sandbox_id,
)
from skerry.sdk import AsyncSandbox
from skerry.testing.cases.base import Conformance, Fresh

KEY, OTHER = b"k" * 32, b"o" * 32
FILL = (
    "mkdir -p tree/empty && echo text > tree/file && ln tree/file tree/second && ln -s nowhere tree/link"
    " && chmod 750 tree && truncate -s 5000000 tree/sparse && head -c 300000 /dev/urandom > tree/data"
)


async def look(sandbox: AsyncSandbox) -> str:
    """Everything about the tree that a user can see."""
    listed = await sandbox.exec("find tree ! -type d -printf '%P|%y|%m|%u|%T@|%n|%l|%s\\n' | sort", check=True)
    return listed.stdout + await sandbox.files.hash("tree")


class PortableConformance(Conformance):
    """export_state and import_state."""

    title = "states"
    needs = "portable"

    @pytest.fixture(autouse=True)
    @classmethod
    def _silent(cls) -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkerryWarning)
            yield

    async def test_a_sandbox_from_the_file_is_the_same(self, fresh: Fresh) -> None:
        """Files, their links, modes, times and holes, and variables."""
        source = await fresh(env={"A": "1"})
        await source.exec(FILL, check=True)
        await source.env.set("B", "2")
        data = await source.export_state()
        assert data is not None
        copy = await fresh(import_state=data)
        assert copy.id != source.id
        assert await look(copy) == await look(source)
        assert (await copy.exec("echo $A$B")).stdout == "12\n"

    async def test_a_file_is_of_one_moment_and_its_source_goes_on(self, fresh: Fresh) -> None:
        """What is written later is not in it; the source runs as before."""
        source = await fresh()
        await source.files.write("then", b"x")
        data = await source.export_state()
        await source.files.write("later", b"x")
        copy = await fresh(import_state=data)
        assert (await copy.files.exists("then"), await copy.files.exists("later")) == (True, False)
        assert (await source.exec("ls")).stdout == "later\nthen\n"

    async def test_paths_and_streams_are_as_good_as_bytes(self, fresh: Fresh, tmp_path: Any) -> None:
        """A path has the whole file or nothing new; a stream gets the same bytes in order."""
        source = await fresh()
        await source.files.write("file", b"content")
        stream, path = io.BytesIO(), tmp_path / "state"
        assert await source.export_state(stream) is None
        assert await source.export_state(path) is None
        assert [found.name for found in tmp_path.iterdir()] == ["state"]
        for given in (io.BytesIO(stream.getvalue()), path, str(path)):
            assert await (await fresh(import_state=given)).files.read("file") == b"content"

    async def test_a_damaged_or_cut_file_makes_no_sandbox(
        self, fresh: Fresh, attempt: Fresh, provider: Provider
    ) -> None:
        """A damaged or cut file is a typed error and leaves nothing."""
        source = await fresh()
        await source.exec("head -c 200000 /dev/urandom > data", check=True)
        data = await source.export_state()
        assert data is not None
        before, middle = [info.id for info in await provider.list()], len(data) // 2
        altered = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        for broken in (data[:middle], data[:-1], altered, data + b"more", b"", b"something else"):
            with pytest.raises((Corrupted, InvalidArgument)):
                await attempt(import_state=broken)
        assert [info.id for info in await provider.list()] == before

    async def test_an_encrypted_file_needs_its_key(self, fresh: Fresh, attempt: Fresh) -> None:
        """Nothing of the file can be read without its key; a wrong key is told apart from a damaged file."""
        source = await fresh()
        await source.files.write("file", b"content")
        data = await source.export_state(key=KEY)
        for key in (None, OTHER):
            with pytest.raises(Unauthenticated):
                await attempt(import_state=data, key=key)
        assert await (await fresh(import_state=data, key=KEY)).files.read("file") == b"content"

    async def test_secrets_are_not_in_it(self, fresh: Fresh) -> None:
        """A secret belongs to its sandbox alone."""
        source = await fresh(secrets={"TOKEN": "s3cret-value"})
        copy = await fresh(import_state=await source.export_state())
        assert (await copy.exec("echo [$TOKEN]")).stdout == "[]\n"

    async def test_what_its_target_raises_ends_an_export(self, fresh: Fresh) -> None:
        """The caller's error ends the export, and the sandbox keeps running."""

        class Full(io.BytesIO):
            def write(self, data: object) -> int:
                raise RuntimeError("no more")

        source = await fresh()
        with pytest.raises(RuntimeError, match="no more"):
            await source.export_state(Full())
        assert (await source.exec("echo on")).stdout == "on\n"

    async def test_one_that_is_not_there_is_not_found(self, provider: Provider) -> None:
        """Nothing is written for an unknown id."""
        assert isinstance(provider, Portable)
        target = io.BytesIO()
        with pytest.raises(SandboxNotFound):
            await provider.export_state(new_sandbox_id(), target, key=None, on_progress=None)
        assert target.getvalue() == b""


class ArchivableConformance(Conformance):
    """archive, and start from there."""

    title = "archives"
    needs = "archivable"

    async def test_it_comes_back_with_its_files_and_variables(self, fresh: Fresh) -> None:
        """Archived it does not run and does not age; `start` brings back everything."""
        sandbox = await fresh(env={"A": "1"})
        await sandbox.exec(FILL, check=True)
        await sandbox.env.set("B", "2")
        seen = await look(sandbox)
        info = await sandbox.archive()
        assert (info.state, info.expires_at, info.started_at) == (State.ARCHIVED, None, None)
        assert (await sandbox.archive()).state is State.ARCHIVED
        assert (await sandbox.start()).state is State.RUNNING
        assert await look(sandbox) == seen
        assert (await sandbox.exec("echo $A$B")).stdout == "12\n"

    async def test_the_next_command_starts_it(self, fresh: Fresh) -> None:
        """A command starts an archived sandbox as it starts a stopped one."""
        sandbox = await fresh()
        await sandbox.files.write("file", b"x")
        await sandbox.archive()
        assert await sandbox.files.read("file") == b"x"

    async def test_an_encrypted_archive_needs_its_key(self, fresh: Fresh) -> None:
        """A missing or wrong key changes nothing."""
        sandbox = await fresh()
        await sandbox.files.write("file", b"x")
        await sandbox.archive(key=KEY)
        for key in (None, OTHER):
            with pytest.raises(Unauthenticated):
                await sandbox.start(key=key)
            assert (await sandbox.info()).state is State.ARCHIVED
        await sandbox.start(key=KEY)
        assert await sandbox.files.read("file") == b"x"

    async def test_one_that_is_not_there_is_not_found(self, provider: Provider) -> None:
        """An unknown id is a specific error."""
        assert isinstance(provider, Archivable)
        for call in (provider.archive, provider.unarchive):
            with pytest.raises(SandboxNotFound):
                await call(new_sandbox_id())

    async def test_destroyed_it_is_gone(self, fresh: Fresh, provider: Provider) -> None:
        """A destroyed sandbox takes its archive with it."""
        sandbox = await fresh()
        await sandbox.archive()
        await sandbox.destroy()
        with pytest.raises(SandboxNotFound):
            await provider.get(sandbox.id)
