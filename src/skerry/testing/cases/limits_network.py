"""Limits and the network: what was asked for is enforced, or was refused."""

from __future__ import annotations

import time
from typing import Any

import pytest

from skerry.core import (
    ExecStatus,
    InvalidArgument,
    OutOfMemory,
    Provider,
    QuotaExceeded,
    Resources,
    SandboxNotFound,
    Unsupported,
)
from skerry.sdk import AsyncSandbox
from skerry.testing.cases.base import Conformance, Fresh, not_offered, until

MIB = 1 << 20
EAT = "head -c 500000000 /dev/zero | tail"  # tail keeps what has no newline


class LimitsConformance(Conformance):
    """Memory, processes and CPU that `create` was told."""

    title = "limits"

    async def test_the_limits_in_force_are_those_asked_for(self, fresh: Fresh) -> None:
        """A limit is applied as given or refused, never rounded away silently."""
        sandbox = await fresh(resources=Resources(memory=128 * MIB, pids=50))
        limits = (await sandbox.info()).resources
        assert (limits.memory, limits.pids) == (128 * MIB, 50)
        usage = await sandbox.usage()
        assert (usage.memory_total, usage.pids_limit) == (128 * MIB, 50)

    async def test_memory_beyond_the_limit_ends_the_command_not_the_sandbox(self, fresh: Fresh) -> None:
        """The command that took too much is killed and says why; the sandbox keeps running."""
        sandbox = await fresh(resources=Resources(memory=64 * MIB))
        result = await sandbox.exec(EAT)
        assert result.oom_killed
        failed = await sandbox.exec(f"{EAT.split(' | ')[1]} < /dev/zero; exit $?")
        assert (failed.status, failed.exit_code, failed.oom_killed) == (ExecStatus.OUT_OF_MEMORY, 137, True)
        code = await sandbox.code_run(f"{EAT.split(' | ')[1]} < /dev/zero; echo then", language="sh")
        assert (code.status, code.result, code.oom_killed) == (ExecStatus.EXITED, "then\n", True)
        with pytest.raises(OutOfMemory):
            await sandbox.exec(f"exec {EAT.split(' | ')[1]} < /dev/zero", check=True)
        assert (await sandbox.exec("echo fine")).stdout == "fine\n"

    async def test_processes_beyond_the_limit_cannot_start(self, fresh: Fresh) -> None:
        """A sandbox cannot take all of the machine's processes, and works again when its fork bomb is gone."""
        sandbox = await fresh(resources=Resources(pids=40))
        # The main process needs no fork to live on: its children may have taken the last one.
        result = await sandbox.exec("(for i in $(seq 200); do sleep 60 & done) & exec sleep 60", timeout=1.5)
        assert result.timed_out
        assert "fork" in result.stderr.lower()
        assert (await sandbox.exec("echo fine")).stdout == "fine\n"

    async def test_less_cpu_is_less_cpu(self, fresh: Fresh) -> None:
        """A tenth of a core does not get half of one, however hard it tries."""
        sandbox = await fresh(resources=Resources(cpu=0.1))
        before = (await sandbox.usage()).cpu_seconds
        await sandbox.exec("while :; do :; done", timeout=1.5)
        assert (await sandbox.usage()).cpu_seconds - before < 0.6
        assert (await sandbox.info()).resources.cpu == 0.1

    async def test_more_than_the_maximum_is_refused(self, provider: Provider, attempt: Fresh) -> None:
        """A request above the maximum makes nothing."""
        before = {info.id for info in await provider.list()}
        for resources in (Resources(memory=1 << 60), Resources(pids=10**9), Resources(cpu=100_000)):
            with pytest.raises((QuotaExceeded, Unsupported)):
                await attempt(resources=resources)
        assert {info.id for info in await provider.list()} == before

    async def test_a_limit_that_does_not_exist_is_refused(self, provider: Provider, attempt: Fresh) -> None:
        """A misspelt limit must not be a sandbox without one."""
        for wrong in ({"memroy": 1}, {"memory": "lots"}, {"cpu": -1}, {"pids": 0}):
            with pytest.raises(InvalidArgument):
                await attempt(resources=wrong)


class NetworkConformance(Conformance):
    """A closed network is closed."""

    title = "network"

    @pytest.fixture(scope="class")
    @classmethod
    async def closed(cls, provider: Provider, options: dict[str, Any]) -> Any:
        """A sandbox that asked for no network."""
        try:
            sandbox = await AsyncSandbox.create(provider, **(options | {"network": "none"}))
        except Unsupported as error:
            not_offered(str(error))
        yield sandbox
        await sandbox.destroy()

    async def test_none_is_what_the_info_says(self, closed: AsyncSandbox) -> None:
        """A provider that cannot close the network refuses; it does not pretend."""
        assert (await closed.info()).network == "none"

    async def test_none_has_no_interface_but_loopback(self, closed: AsyncSandbox) -> None:
        """opensandbox-group/OpenSandbox#1315: deny-all must never be an open network."""
        interfaces = await closed.exec("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
        assert set(interfaces.stdout.split()) <= {"lo"}

    async def test_none_has_no_route_to_anywhere(self, closed: AsyncSandbox) -> None:
        """fencesandbox/fence#142: not a proxy variable that a raw socket goes round, but no way out at all."""
        routes = await closed.exec("tail -n +2 /proc/net/route; cut -d' ' -f10 /proc/net/ipv6_route | sort -u")
        assert set(routes.stdout.split()) <= {"lo"}

    async def test_loopback_works_without_a_network(self, closed: AsyncSandbox) -> None:
        """A server and its client inside the sandbox reach each other."""
        program = (
            "import socket; s = socket.create_server(('127.0.0.1', 0)); "
            "c = socket.create_connection(s.getsockname()); c.sendall(b'hi'); print(s.accept()[0].recv(2).decode())"
        )
        assert (await closed.exec(["python3", "-c", program])).stdout == "hi\n"

    async def test_an_unknown_policy_is_refused(self, provider: Provider, attempt: Fresh) -> None:
        """An unknown policy must not become an open network."""
        before = {info.id for info in await provider.list()}
        with pytest.raises((Unsupported, InvalidArgument)):
            await attempt(network="deny-everything")
        assert {info.id for info in await provider.list()} == before


class ResizableConformance(Conformance):
    """Limits that change while the sandbox runs."""

    title = "resizable"
    needs = "resizable"

    async def test_a_new_limit_is_in_force_at_once(self, fresh: Fresh) -> None:
        """What the info says is what holds: a command that fitted before is killed now."""
        sandbox = await fresh(resources=Resources(memory=512 * MIB))
        assert (await sandbox.exec("head -c 100000000 /dev/zero | tail | wc -c")).stdout == "100000000\n"
        info = await sandbox.set_limits(memory=64 * MIB)
        assert info.resources.memory == 64 * MIB
        assert (await sandbox.exec("head -c 300000000 /dev/zero | tail")).oom_killed

    async def test_limits_not_named_stay(self, fresh: Fresh) -> None:
        """Changing one limit must not lift the others."""
        sandbox = await fresh(resources=Resources(memory=128 * MIB, pids=60, cpu=0.5))
        await sandbox.set_limits(pids=70)
        limits = (await sandbox.info()).resources
        assert (limits.memory, limits.pids, limits.cpu) == (128 * MIB, 70, 0.5)

    async def test_what_runs_is_not_restarted(self, fresh: Fresh) -> None:
        """daytonaio/daytona#3357: a change on a running sandbox must not cost what runs in it."""
        sandbox = await fresh()
        process = await sandbox.processes.spawn("sleep 1000")
        await sandbox.scale(cpu=0.5, memory=256 * MIB)
        assert (await process.poll()).exit_code is None
        assert (await sandbox.exec(["kill", "-0", str(process.pid)])).ok

    async def test_above_the_maximum_nothing_changes(self, fresh: Fresh) -> None:
        """A refused change leaves the limits as they were."""
        sandbox = await fresh(resources=Resources(pids=60))
        with pytest.raises(QuotaExceeded):
            await sandbox.set_limits(pids=10**9)
        with pytest.raises(InvalidArgument):
            await sandbox.set_limits(pids=0)
        assert (await sandbox.info()).resources.pids == 60

    async def test_a_destroyed_sandbox_has_no_limits_to_change(self, fresh: Fresh) -> None:
        """A destroyed sandbox is not found, rather than changed."""
        sandbox = await fresh()
        await sandbox.destroy()
        with pytest.raises(SandboxNotFound):
            await sandbox.set_limits(pids=50)


class DeadlinesConformance(Conformance):
    """Lifetimes end, and can be changed."""

    title = "deadlines"
    needs = "deadlines"

    async def test_a_sandbox_ends_at_its_deadline(self, fresh: Fresh, provider: Provider) -> None:
        """huggingface/ml-intern#163: a sandbox nobody destroys must not live for ever."""
        sandbox = await fresh(timeout=1.0)
        await _not_there(provider, sandbox)
        with pytest.raises(SandboxNotFound):
            await sandbox.exec("true")

    async def test_its_processes_end_with_it(self, fresh: Fresh, provider: Provider) -> None:
        """What ignores polite signals must not outlive the deadline and keep its sandbox alive."""
        sandbox = await fresh(timeout=2.0)
        await sandbox.processes.spawn("trap '' TERM HUP INT; while :; do sleep 1; done")
        await _not_there(provider, sandbox)

    async def test_a_deadline_can_be_brought_forward(self, fresh: Fresh, provider: Provider) -> None:
        """The new end is in the info and is kept."""
        sandbox = await fresh(timeout=1000)
        info = await sandbox.set_timeout(1.0)
        assert info.expires_at is not None
        assert info.expires_at <= time.time() + 1.5
        await _not_there(provider, sandbox)

    async def test_a_deadline_can_be_put_off(self, fresh: Fresh) -> None:
        """harbor-framework/harbor#285: a lifetime must not be fixed when the sandbox is made."""
        sandbox = await fresh(timeout=2.0)
        await sandbox.set_timeout(500)
        assert (await sandbox.exec("sleep 2.3; echo alive")).stdout == "alive\n"

    async def test_work_does_not_put_it_off(self, fresh: Fresh, provider: Provider) -> None:
        """kortix-ai/suna#3543: polling must not keep a sandbox alive for ever."""
        sandbox = await fresh(timeout=1.0)

        async def poll() -> None:
            while True:
                await provider.get(sandbox.id)
                await sandbox.is_ready()

        with pytest.raises(SandboxNotFound):
            await poll()

    async def test_nonsense_and_too_much_are_refused(self, fresh: Fresh) -> None:
        """The deadline stays as it was."""
        sandbox = await fresh(timeout=100)
        before = (await sandbox.info()).expires_at
        for wrong in (0, -1, float("nan")):
            with pytest.raises(InvalidArgument):
                await sandbox.set_timeout(wrong)
        with pytest.raises(QuotaExceeded):
            await sandbox.set_timeout(10.0**9)
        assert (await sandbox.info()).expires_at == before


class LeasesConformance(Conformance):
    """A sandbox that belongs to its client ends with it."""

    title = "leases"
    needs = "leases"

    async def test_a_client_that_disappears_takes_its_sandbox_along(self, fresh: Fresh, provider: Provider) -> None:
        """huggingface/ml-intern#163, NousResearch/hermes-agent#29123: a lost client must not leave an orphan."""
        sandbox = await fresh()
        await sandbox.__aenter__()
        await sandbox.close()
        await _not_there(provider, sandbox)

    async def test_the_info_says_whose_it_is(self, fresh: Fresh) -> None:
        """A client that looks for orphans can tell them from sandboxes in use."""
        sandbox = await fresh()
        assert (await sandbox.info()).leased_to is None
        async with sandbox:
            assert (await sandbox.info()).leased_to is not None

    async def test_one_that_is_kept_outlives_its_block(self, fresh: Fresh, provider: Provider) -> None:
        """`keep` gives the lease up: neither the end of the block nor of the connection ends the sandbox."""
        sandbox = await fresh()
        async with sandbox:
            await sandbox.keep()
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        assert (await other.exec("true")).ok
        assert (await other.info()).leased_to is None
        await other.close()

    async def test_without_a_lease_it_lives_on(self, fresh: Fresh, provider: Provider) -> None:
        """A sandbox that was not tied to its client survives the client."""
        sandbox = await fresh()
        await sandbox.exec("true")
        await sandbox.close()
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        assert (await other.exec("true")).ok
        await other.close()

    async def test_another_client_does_not_prolong_it(self, fresh: Fresh, provider: Provider) -> None:
        """Only the owner's connection counts; a visitor's does not keep it alive."""
        sandbox = await fresh()
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        await sandbox.__aenter__()
        await sandbox.close()
        await _not_there(provider, sandbox)
        await other.close()


async def _not_there(provider: Provider, sandbox: AsyncSandbox) -> None:
    """Wait until the sandbox is not found. Raises TimeoutError."""

    async def missing() -> bool:
        try:
            await provider.get(sandbox.id)
        except SandboxNotFound:
            return True
        return False

    await until(missing, seconds=30)
