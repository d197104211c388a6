"""The environment of later commands."""

from __future__ import annotations

import os

import pytest

from skerry.core import InvalidArgument, Provider
from skerry.sdk import AsyncSandbox
from skerry.testing.cases.base import Conformance, Fresh


class EnvConformance(Conformance):
    """Variables that are set once and hold for every command."""

    title = "env"

    async def test_variables_of_create_reach_every_command(self, fresh: Fresh) -> None:
        """Commands, background processes and the environment agree about it."""
        sandbox = await fresh(env={"GREETING": "grüß dich\n$HOME"})
        assert (await sandbox.exec('printf %s "$GREETING"')).stdout == "grüß dich\n$HOME"
        process = await sandbox.processes.spawn('printf %s "$GREETING"')
        assert (await process.wait()).stdout == "grüß dich\n$HOME"
        assert await sandbox.env.get("GREETING") == "grüß dich\n$HOME"

    async def test_a_variable_set_later_holds_from_then_on(self, sandbox: AsyncSandbox) -> None:
        """Variables can be set one by one or several at once."""
        await sandbox.env.set("A", "1")
        await sandbox.env.set({"B": "2", "C": ""})
        assert (await sandbox.exec("echo $A $B ${C-unset}.")).stdout == "1 2 .\n"

    async def test_an_unset_variable_is_gone(self, sandbox: AsyncSandbox) -> None:
        """Unset is not empty; unsetting a variable that is not set is not an error."""
        await sandbox.env.set("GONE", "x")
        await sandbox.env.unset("GONE", "NEVER_WAS")
        assert await sandbox.env.get("GONE") is None
        assert (await sandbox.exec("echo ${GONE-unset}")).stdout == "unset\n"

    async def test_all_of_it_can_be_read(self, sandbox: AsyncSandbox) -> None:
        """What `all` says is what a command finds."""
        await sandbox.env.set("ONE", "=a=b=")
        everything = await sandbox.env.all()
        assert everything["ONE"] == "=a=b="
        printed = (await sandbox.exec(["env", "-0"])).stdout_bytes.split(b"\0")
        assert {os.fsencode(f"{name}={value}") for name, value in everything.items()} <= set(printed)

    async def test_a_running_process_keeps_what_it_had(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A change is for commands that start later."""
        await sandbox.env.set("WHEN", "before")
        process = await sandbox.processes.spawn(f"until [ -e {directory}/go ]; do sleep 0.02; done; echo $WHEN")
        await sandbox.env.set("WHEN", "after")
        await sandbox.files.write(f"{directory}/go", b"")
        assert (await process.wait()).stdout == "before\n"
        assert (await sandbox.exec("echo $WHEN")).stdout == "after\n"

    async def test_every_client_sees_the_same(self, sandbox: AsyncSandbox, provider: Provider) -> None:
        """The environment belongs to the sandbox, not to the connection that set it."""
        await sandbox.env.set("SHARED", "yes")
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        assert (await other.exec("echo $SHARED")).stdout == "yes\n"
        await other.close()

    async def test_nonsense_is_refused(self, sandbox: AsyncSandbox) -> None:
        """A name with `=` or a value with NUL would mean something else inside."""
        for name, value in (("", "x"), ("A=B", "x"), ("A", "\0"), ("A\0", "x")):
            with pytest.raises(InvalidArgument):
                await sandbox.env.set(name, value)
        with pytest.raises(InvalidArgument):
            await sandbox.env.get("")

    async def test_the_host_s_environment_stays_out(self, fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
        """Variables of the program that makes sandboxes, keys among them, must not be inside."""
        monkeypatch.setenv("HOST_SECRET_OF_THE_CASE", "s3cret")
        sandbox = await fresh()
        assert "s3cret" not in (await sandbox.exec("env; cat /proc/1/environ 2>/dev/null || true")).stdout
