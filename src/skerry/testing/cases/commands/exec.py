"""Commands: what is run, with what, and how it ended."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import anyio
import pytest

from skerry.core import (
    CommandFailed,
    CommandNotFound,
    ConnectionLost,
    ExecStatus,
    ExecTimeout,
    FileMissing,
    InvalidArgument,
    PermissionDenied,
    Provider,
    SkerryError,
    Unsupported,
)
from skerry.sdk import AsyncSandbox
from skerry.testing.cases.base import Conformance, Fresh


class ExecConformance(Conformance):
    """Arguments, exit codes, environment, directories, users and input of commands."""

    title = "exec"

    async def test_a_list_is_not_interpreted(self, sandbox: AsyncSandbox) -> None:
        """Arguments reach the program byte for byte: no shell, no quoting."""
        words = ["$HOME", "a b", "", "*", "'\"", ";", "ü\n"]
        result = await sandbox.exec(["printf", "[%s]", *words])
        assert result.stdout == "".join(f"[{word}]" for word in words)

    async def test_a_string_is_a_shell_s(self, sandbox: AsyncSandbox) -> None:
        """Pipes, variables and several commands work in a string."""
        assert (await sandbox.exec("A=3; echo $A | tr 3 4 && false || echo no")).stdout == "4\nno\n"

    @pytest.mark.parametrize("code", [0, 1, 42, 127, 255])
    async def test_an_exit_code_is_reported_as_it_is(self, code: int, sandbox: AsyncSandbox) -> None:
        """axelmierczuk/fleet-mcp#22: a non-zero exit is a result with its code, not an error and never 0."""
        result = await sandbox.exec(f"exit {code}")
        assert (result.exit_code, result.status, result.ok) == (code, ExecStatus.EXITED, code == 0)
        assert (result.signal, result.timed_out) == (None, False)

    async def test_check_raises_with_the_whole_result(self, sandbox: AsyncSandbox) -> None:
        """`check=True` turns a failure into an error that still has output and code."""
        with pytest.raises(CommandFailed) as failed:
            await sandbox.exec("echo out; echo why >&2; exit 4", check=True)
        result = failed.value.result
        assert (result.exit_code, result.stdout, result.stderr) == (4, "out\n", "why\n")
        assert "why" in str(failed.value)

    async def test_a_signal_is_no_exit_code(self, sandbox: AsyncSandbox) -> None:
        """A command that was killed has a signal and no exit code: 137 or 0 is never invented."""
        result = await sandbox.exec("kill -SEGV $$")
        assert (result.status, result.exit_code, result.signal) == (ExecStatus.SIGNALED, None, signal.SIGSEGV)

    async def test_a_missing_program_is_an_error_of_its_own(self, sandbox: AsyncSandbox) -> None:
        """A list whose program is not there never ran; a shell says 127 by itself."""
        with pytest.raises(CommandNotFound):
            await sandbox.exec(["no-such-program", "x"])
        assert (await sandbox.exec("no-such-program")).exit_code == 127

    async def test_a_file_that_is_no_program_does_not_run(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Without the permission to execute there is an error, not an exit code of a command that never ran."""
        await sandbox.files.write(f"{directory}/plain", b"#!/bin/sh\necho ran\n", mode=0o644)
        with pytest.raises((PermissionDenied, CommandNotFound)):
            await sandbox.exec([f"{directory}/plain"])
        await sandbox.files.chmod(f"{directory}/plain", 0o755)
        assert (await sandbox.exec([f"{directory}/plain"])).stdout == "ran\n"

    async def test_stdout_and_stderr_are_apart(self, sandbox: AsyncSandbox) -> None:
        """harbor-framework/harbor#2054: stderr must not be folded into stdout."""
        result = await sandbox.exec("echo out; echo err >&2; echo out")
        assert (result.stdout, result.stderr) == ("out\nout\n", "err\n")

    async def test_it_starts_in_the_working_directory(self, sandbox: AsyncSandbox) -> None:
        """Where commands start is what the info says, and relative file paths start there too."""
        assert (await sandbox.exec("pwd -P")).stdout == (await sandbox.info()).workdir + "\n"
        await sandbox.exec("echo here > from-exec")
        assert await sandbox.files.read("from-exec") == b"here\n"

    async def test_cwd_is_where_it_runs(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A directory holds for one command; the next command starts in the usual one."""
        assert (await sandbox.exec("pwd", cwd=directory)).stdout == f"{directory}\n"
        assert (await sandbox.exec("pwd")).stdout != f"{directory}\n"

    async def test_a_missing_cwd_is_an_error(self, sandbox: AsyncSandbox) -> None:
        """A command must not run somewhere else because its directory does not exist."""
        with pytest.raises(FileMissing):
            await sandbox.exec("touch /tmp/never", cwd="/no/such/directory")

    async def test_env_of_one_command_stays_with_it(self, sandbox: AsyncSandbox) -> None:
        """Variables given to a command are added to the sandbox's and gone afterwards."""
        assert (await sandbox.exec('echo "$A"; test -n "$PATH"', env={"A": "1 2\n"}, check=True)).stdout == "1 2\n\n"
        assert (await sandbox.exec("echo ${A-unset}")).stdout == "unset\n"

    async def test_env_values_may_be_any_bytes(self, sandbox: AsyncSandbox) -> None:
        """Variables are bytes; what is not UTF-8 arrives unchanged."""
        odd = bytes(range(1, 256))
        result = await sandbox.exec('printf %s "$ODD"', env={"ODD": os.fsdecode(odd)})
        assert result.stdout_bytes == odd

    async def test_nonsense_is_refused_before_anything_is_sent(self, sandbox: AsyncSandbox) -> None:
        """Wrong options are the caller's mistake and say so."""
        wrong: list[dict[str, Any]] = [
            {"command": []},
            {"command": "a\0b"},
            {"command": "true", "timeout": 0},
            {"command": "true", "timeout": -1},
            {"command": "true", "env": {"A=B": "x"}},
            {"command": "true", "output_limit": -1},
            {"command": "true", "cwd": ""},
        ]
        for options in wrong:
            with pytest.raises(InvalidArgument):
                await sandbox.exec(**options)

    async def test_input_arrives_and_ends(self, sandbox: AsyncSandbox) -> None:
        """What is given as stdin is read byte for byte, and then there is an end."""
        data = os.urandom(1_000_003)
        assert (await sandbox.exec("cat", stdin=data)).stdout_bytes == data
        assert (await sandbox.exec("cat", stdin="äöü")).stdout == "äöü"

    async def test_without_input_a_reader_finds_the_end(self, sandbox: AsyncSandbox) -> None:
        """openai/codex#20807: a command that reads must not hang because nobody gave it an input."""
        result = await sandbox.exec("cat; echo done", timeout=20)
        assert (result.stdout, result.exit_code) == ("done\n", 0)

    async def test_a_command_may_ignore_its_input(self, sandbox: AsyncSandbox) -> None:
        """Input that nobody reads makes a command neither hang nor fail."""
        assert (await sandbox.exec("echo done", stdin=bytes(3_000_000))).stdout == "done\n"

    async def test_a_long_command_line_arrives(self, sandbox: AsyncSandbox) -> None:
        """langchain-ai/deepagents#1402: 100 kB in one argument must not be cut or die."""
        assert (await sandbox.exec(["printf", "%s", "x" * 100_000])).stdout_bytes == b"x" * 100_000

    async def test_a_command_line_up_to_the_kernel_s_limit_arrives(self, sandbox: AsyncSandbox) -> None:
        """2 MiB of arguments and variables together: some tools pass whole files as arguments."""
        arguments = ["x" * 100_000] * 12
        variables = {f"V{number}": "y" * 60_000 for number in range(10)}
        result = await sandbox.exec(["sh", "-c", "echo $# ${#12} ${#V9}", "sh", *arguments], env=variables)
        assert result.stdout == "12 100000 60000\n"
        process = await sandbox.processes.spawn(["sh", "-c", "echo $#", "sh", *arguments])
        assert (await process.wait()).stdout == "12\n"

    async def test_a_command_line_beyond_the_kernel_s_limit_is_an_error(self, sandbox: AsyncSandbox) -> None:
        """What the kernel refuses is an error, and the sandbox keeps running."""
        for arguments in (["x" * 3_000_000], ["x" * 200_000], ["x" * 100_000] * 21):
            with pytest.raises(SkerryError):
                await sandbox.exec(["echo", *arguments])
        assert (await sandbox.exec("true")).ok

    async def test_a_command_runs_as_the_sandbox_s_user(self, sandbox: AsyncSandbox) -> None:
        """Commands run as the user that the info names."""
        assert (await sandbox.exec(["id", "-un"])).stdout == (await sandbox.info()).user + "\n"

    async def test_an_unknown_user_is_refused(self, sandbox: AsyncSandbox) -> None:
        """A command must not run as another user because its user does not exist."""
        with pytest.raises(SkerryError, match="nobody-of-that-name"):
            await sandbox.exec("id -un", user="nobody-of-that-name")
        with pytest.raises(SkerryError, match="nobody-of-that-name"):
            await sandbox.files.read("/etc/passwd", user="nobody-of-that-name")

    async def test_the_result_says_how_long_it_took(self, sandbox: AsyncSandbox) -> None:
        """Duration is the command's own, measured where it ran."""
        result = await sandbox.exec("sleep 0.3")
        assert 0.29 <= result.duration < 20
        assert result.pid > 0

    async def test_a_background_child_does_not_hold_the_command(self, sandbox: AsyncSandbox) -> None:
        """cloudflare/sandbox-sdk#320: a command returns when it ends, also when a child keeps its output open."""
        began = time.monotonic()
        result = await sandbox.exec("sleep 30 & echo $!", timeout=25)
        assert (result.exit_code, time.monotonic() - began < 15) == (0, True)
        await sandbox.exec(["kill", "-9", result.stdout.strip()], check=True)

    async def test_home_is_there_and_stays(self, sandbox: AsyncSandbox) -> None:
        """open-ace/open-ace#3237: $HOME must be writable and the same from command to command."""
        await sandbox.exec('cd && echo kept > "$HOME/.case-home"', check=True)
        assert (await sandbox.exec('cat "$HOME/.case-home"; rm "$HOME/.case-home"')).stdout == "kept\n"

    async def test_a_result_is_final(self, sandbox: AsyncSandbox) -> None:
        """agentuity/sdk#1218: exec must not resolve with a command that is still running."""
        result = await sandbox.exec("sleep 1; echo end")
        assert (result.status, result.stdout) == (ExecStatus.EXITED, "end\n")
        assert result.duration >= 0.99

    async def test_a_lost_connection_is_never_an_exit_code(self, fresh: Fresh) -> None:
        """cloudflare/sandbox-sdk#873: an end that nobody saw must not be reported as exit code 0."""
        sandbox = await fresh()
        failures: list[Exception] = []

        async def run() -> None:
            try:
                await sandbox.exec("sleep 30", on_stdout=lambda _: None)
            except ConnectionLost as error:
                failures.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            while not [info for info in await sandbox.processes.list() if info.status is ExecStatus.RUNNING]:
                await anyio.sleep(0.01)
            await sandbox.close()
        assert len(failures) == 1

    async def test_a_sandbox_that_goes_away_ends_its_commands(self, fresh: Fresh, provider: Provider) -> None:
        """e2b-dev/E2B#1128: a command must not hang for ever when its sandbox is gone."""
        sandbox = await fresh()
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        async with anyio.create_task_group() as group:

            async def destroy() -> None:
                while not await other.processes.list():
                    await anyio.sleep(0.01)
                await other.destroy()

            group.start_soon(destroy)
            with pytest.raises(SkerryError), anyio.fail_after(30):
                await sandbox.exec("sleep 1000")

    async def test_one_stuck_command_does_not_hold_the_others(self, sandbox: AsyncSandbox) -> None:
        """cloudflare/sandbox-sdk#438: one stuck command must not poison the sandbox."""
        async with sandbox.exec_stream("echo started; sleep 1000") as stuck:
            await anext(stuck)
            for _ in range(5):
                assert (await sandbox.exec("echo fine", timeout=20)).stdout == "fine\n"

    async def test_sixty_at_once_all_get_their_own_answer(self, sandbox: AsyncSandbox) -> None:
        """e2b-dev/E2B#1418: many commands over one client must not mix up or fail."""
        results: dict[int, str] = {}

        async def run(number: int) -> None:
            results[number] = (await sandbox.exec(f"echo {number}; exit {number}")).stdout

        async with anyio.create_task_group() as group:
            for number in range(60):
                group.start_soon(run, number)
        assert results == {number: f"{number}\n" for number in range(60)}

    async def test_waiting_commands_leave_room_for_the_one_they_wait_for(
        self, sandbox: AsyncSandbox, directory: str
    ) -> None:
        """UKGovernmentBEIS/inspect_k8s_sandbox#126: parallel work must not deadlock on a limit of operations."""
        async with anyio.create_task_group() as group:
            for _ in range(40):
                group.start_soon(sandbox.exec, f"until [ -e {directory}/go ]; do sleep 0.1; done")
            await sandbox.files.write(f"{directory}/go", b"")

    async def test_code_is_run_and_its_failure_is_a_result(self, sandbox: AsyncSandbox) -> None:
        """A snippet has output, errors and an exit code; a shell's snippet must not read its own text as input."""
        code = await sandbox.code_run("cat; echo 42; echo e >&2; exit 3", language="sh")
        assert (code.result, code.stderr, code.exit_code) == ("42\n", "e\n", 3)
        with pytest.raises(Unsupported):
            await sandbox.code_run("x", language="no-such-language")

    async def test_code_that_runs_out_of_time_says_so(self, sandbox: AsyncSandbox) -> None:
        """A snippet's timeout is a result as a command's is, with what it printed until then."""
        code = "echo begun; while :; do :; done"
        late = await sandbox.code_run(code, language="sh", timeout=1.0)
        assert (late.status, late.exit_code, late.result) == (ExecStatus.TIMED_OUT, None, "begun\n")
        with pytest.raises(ExecTimeout) as error:
            await sandbox.code_run(code, language="sh", timeout=1.0, check=True)
        assert error.value.result.stdout == "begun\n"
