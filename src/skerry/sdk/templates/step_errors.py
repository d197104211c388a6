"""The errors of steps: of a template's build, of a new sandbox's preparation."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from skerry.core import (
    CommandNotFound,
    ConnectionLost,
    DiskFull,
    ExecResult,
    ExecStatus,
    InvalidArgument,
    SandboxFailed,
    SandboxNotFound,
    SandboxStopped,
    SkerryError,
    TemplateBuildFailed,
)

KEPT_OUTPUT = 64 * 1024
"""Bytes of a step's output that are remembered, for the error it may end with."""
LOG_TAIL = 4000
"""Characters of it that the error carries."""
_UNREACHED = (
    "Temporary failure resolving",
    "Temporary failure in name resolution",
    "Could not resolve",
    "EAI_AGAIN",
    "ENOTFOUND",
    "ENETUNREACH",
    "Network is unreachable",
)
_NO_PROGRAM = re.compile(r"^.*?(\S+): Cannot exec: No such file.*$", re.MULTILINE)
"""What tar says of the program that it would unpack with."""
_NOT_RUN = (CommandNotFound, InvalidArgument, ConnectionLost, SandboxFailed, SandboxNotFound, SandboxStopped)
"""What a command raises that never ended by itself: no shell or user of that name, or the sandbox is gone."""
_FULL = ("No space left on device", "Disk quota exceeded", "ENOSPC", "EDQUOT")


@contextmanager
def named_step(what: str, step: str) -> Iterator[None]:
    """Names the step in an error of a command that never ended by itself."""
    try:
        yield
    except _NOT_RUN as error:
        message = f"{what}: the step {step!r} could not be run: {error.message}"
        raise TemplateBuildFailed(message, step=step, hint=error.hint) from error


def step_error(what: str, step: str, result: ExecResult) -> SkerryError:
    """The error for a step that did not exit with 0."""
    said = (result.stdout + result.stderr)[-LOG_TAIL:]
    last = next(
        (line.strip() for line in reversed(result.stderr.splitlines() or said.splitlines()) if line.strip()), ""
    )
    if any(words in said for words in _FULL):
        return DiskFull(f"{what}: no room for the step {step!r}: {last[:200]}", errno=errno.ENOSPC)
    if result.timed_out:
        why, hint = f"ran out of time after {result.duration:.0f} s", "give it a larger timeout"
    elif result.oom_killed or result.status is ExecStatus.OUT_OF_MEMORY:
        why, hint = "ran out of memory", "give the template more memory: resources.memory"
    elif result.signal is not None:
        why, hint = f"was killed by signal {result.signal}", None
    else:
        why, hint = f"exited with {result.exit_code}", None
        unreached = [line.strip() for line in said.splitlines() if any(words in line for words in _UNREACHED)]
        if unreached:  # tools say this first and end with something less telling
            last, hint = unreached[-1], "the step could not reach the network: check that this machine can"
        elif lacking := _NO_PROGRAM.search(said):
            last, hint = lacking[0], f"the sandbox has no {lacking[1]}: take another template, or unpack it yourself"
    message = f"{what}: the step {step!r} {why}" + (f": {last[:300]}" if last else "")
    return TemplateBuildFailed(message, step=step, log=said, hint=hint)
