"""What git's failures mean, told by its messages, which are in English because it runs with LC_ALL=C."""

from __future__ import annotations

import re

from skerry.core import (
    AlreadyExists,
    ExecResult,
    ExecStatus,
    GitError,
    PermissionDenied,
    RepositoryNotFound,
    SkerryError,
    Unauthenticated,
)

_UNAUTHENTICATED = re.compile(
    r"Authentication failed|could not read (Username|Password)|terminal prompts disabled|Invalid username or password"
    r"|requested URL returned error: 40[13]|Permission denied \(publickey|Host key verification failed"
)
_MISSING = re.compile(
    r"not a git repository|[Rr]epository .*not found|repository .* does not exist"
    r"|does not appear to be a git repository"
)
_HINTS = (
    (re.compile(r"tell me who you are|empty ident"), "pass author_name and author_email"),
    (re.compile(r"nothing (added )?to commit|no changes added"), "add files first, or pass allow_empty=True"),
    (re.compile(r"non-fast-forward|fetch first|stale info"), "pull first: the remote has commits that are not here"),
    (re.compile(r"^CONFLICT|unmerged files|fix conflicts", re.MULTILINE), "solve the conflicts that status() lists"),
    (
        re.compile(r"Could not resolve host|Could not connect|Connection refused"),
        "the server cannot be reached: the sandbox's network may be off",
    ),
)


def git_error(result: ExecResult, arguments: list[str]) -> SkerryError:
    """The error for a git that did not exit with 0; raises ExecTimeout and OutOfMemory itself."""
    if result.status in (ExecStatus.TIMED_OUT, ExecStatus.OUT_OF_MEMORY):
        result.check()
    verb = next(part for part in arguments if not part.startswith("-"))
    message = f"git {verb} failed: {_reason(result)}"
    written = result.stderr + result.stdout[-10_000:]
    if _UNAUTHENTICATED.search(result.stderr):
        return Unauthenticated(message, hint="give a username and a password, or a token, that the server takes")
    if "detected dubious ownership" in result.stderr:
        return PermissionDenied(message, hint="the repository belongs to another user: name that one with user=")
    if "already exists and is not an empty directory" in result.stderr:
        return AlreadyExists(message)
    if _MISSING.search(result.stderr):
        return RepositoryNotFound(message, result)
    hint = next((hint for pattern, hint in _HINTS if pattern.search(written)), None)
    return GitError(message, result, hint=hint)


def _reason(result: ExecResult) -> str:
    """The line that says what is wrong; git writes hints and progress around it."""
    lines = [line.strip() for line in (result.stderr.splitlines() or result.stdout.splitlines()) if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:", "CONFLICT", "remote: "))]
    how = f"signal {result.signal}" if result.signal is not None else f"exit code {result.exit_code}"
    return (told or lines[-1:] or [how])[0][:500]
