"""The functions of `skerry.functional`: each exists for `await` and blocking, and both do what the methods do."""

from __future__ import annotations

import inspect

import pytest

import skerry.functional
from skerry.core import Conflict, SandboxNotFound, VolumeNotFound
from skerry.functional import aio


def test_every_function_is_there_for_await_and_blocking() -> None:
    made = {name for name, found in vars(aio).items() if inspect.isfunction(found)}
    assert made | {"SandboxClient"} == set(skerry.functional.__all__)
    for name in made:
        theirs, ours = getattr(aio, name), getattr(skerry.functional, name)
        assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)
        assert not inspect.iscoroutinefunction(ours)


async def test_the_async_functions_do_what_the_methods_do() -> None:
    client = aio.create_client()
    with pytest.raises(VolumeNotFound):
        await aio.get_volume(client, "shared")
    volume = await aio.get_volume(client, "shared", create=True)
    sandbox = await aio.create_sandbox(client, name="worker", volumes={"/data": volume}, resources={"memory": "300MB"})
    try:
        assert (await aio.find_sandbox(client, "worker")).id == sandbox.id
        await aio.write_file(sandbox, "note", "text")
        assert await aio.read_file(sandbox, "note") == b"text"
        assert [entry.path for entry in await aio.list_files(sandbox)] == ["note"]
        await aio.delete_file(sandbox, "note")
        await aio.set_env(sandbox, "KEY", "value")
        assert (await aio.execute_command(sandbox, "echo $KEY; ls")).stdout == "value\n"
        pty = await aio.create_pty(sandbox, ["cat"], cols=90)
        assert [known.cols for known in await sandbox.terminals.list()] == [90]
        await pty.kill()
        await aio.restart_sandbox(sandbox, resources={"memory": (sandbox.config.resources.memory or 0) * 2})
        assert (await aio.get_info(sandbox)).resources.memory == 600_000_000
        await aio.reconnect_sandbox(sandbox)
        assert (await aio.get_status(sandbox)).state == "running"
        kept = await aio.create_snapshot(sandbox, "kept")
        assert await aio.list_snapshots(sandbox) == [kept]
        await aio.delete_snapshot(client, kept)
        assert await aio.list_snapshots(sandbox) == []
        with pytest.raises(Conflict):
            await aio.recover_sandbox(sandbox)
    finally:
        await aio.delete_sandbox(sandbox)
    with pytest.raises(SandboxNotFound):
        await aio.get_sandbox(client, "worker")
    await aio.delete_volume(client, volume)
    assert "shared" not in [info.name for info in await aio.list_volumes(client)]
