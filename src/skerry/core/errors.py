"""Every error Skerry raises, in one tree.

SkerryError
├── InvalidArgument (ValueError)            INVALID_ARGUMENT
│   └── TooLarge                            TOO_LARGE
├── Unsupported (NotImplementedError)       UNSUPPORTED
│   └── NewerVersion                        … something stored by a newer version of Skerry
├── ProviderUnavailable                     PROVIDER_UNAVAILABLE
│   └── DiskLocked                          DISK_LOCKED
├── ConnectionLost (ConnectionError)        CONNECTION_LOST
├── Unauthenticated (PermissionError)       UNAUTHENTICATED
├── Timeout (TimeoutError)                  TIMEOUT
│   └── ExecTimeout                         … of a command; carries its result
├── QuotaExceeded                           QUOTA_EXCEEDED
├── RateLimited                             RATE_LIMITED        carries when to retry
├── InternalError                           INTERNAL            a server's own fault; carries the request's id
├── NotFound (LookupError)                  NOT_FOUND           a user, project, key … of a server
├── Conflict                                CONFLICT
├── Corrupted                               CORRUPTED
├── SandboxNotFound (LookupError)           SANDBOX_NOT_FOUND
├── SandboxStopped                          SANDBOX_STOPPED
├── SnapshotNotFound (LookupError)          SNAPSHOT_NOT_FOUND
├── VolumeNotFound (LookupError)            VOLUME_NOT_FOUND
├── TemplateNotFound (LookupError)          TEMPLATE_NOT_FOUND
├── TemplateBuildFailed                     TEMPLATE_BUILD_FAILED   carries the step and the end of its output
├── SandboxFailed                           SANDBOX_FAILED
├── ProcessNotFound (ProcessLookupError)    PROCESS_NOT_FOUND
├── CommandNotFound (FileNotFoundError)     COMMAND_NOT_FOUND
├── CommandFailed                           COMMAND_FAILED      `check=True`; carries the result
│   └── OutOfMemory (MemoryError)           OUT_OF_MEMORY
├── GitError                                GIT_FAILED          carries the result
│   └── RepositoryNotFound (LookupError)    REPOSITORY_NOT_FOUND
├── PortClosed (ConnectionRefusedError)     PORT_CLOSED
└── FileError (OSError)                     IO_ERROR
    ├── FileMissing (FileNotFoundError)     FILE_NOT_FOUND
    ├── PermissionDenied (PermissionError)  PERMISSION_DENIED
    ├── IsADirectory (IsADirectoryError)    IS_A_DIRECTORY
    ├── NotADirectory (NotADirectoryError)  NOT_A_DIRECTORY
    ├── NotAFile                            NOT_A_FILE
    ├── SymlinkLoop                         SYMLINK_LOOP
    ├── AlreadyExists (FileExistsError)     ALREADY_EXISTS
    ├── NotEmpty                            NOT_EMPTY
    ├── ReadOnly                            READ_ONLY
    └── DiskFull                            DISK_FULL

"The sandbox failed" and "the command failed" are never the same error.
"""

from __future__ import annotations

from errno import ELOOP
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from skerry.core.models import ExecResult


class SkerryError(Exception):
    """The root of all errors.

    `code` is stable, `retryable` says whether the same call may work later, `hint` what to do next.
    """

    code: ClassVar[str] = "SKERRY_ERROR"
    retryable: bool = False
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint
        if retryable is not None:
            self.retryable = retryable
        self._show(self.hint)

    def __setattr__(self, name: str, value: object) -> None:
        old = self.hint
        super().__setattr__(name, value)
        if name == "hint":
            self._show(self.hint, instead_of=old)

    def _show(self, hint: str, instead_of: str = "") -> None:
        """Show the hint below the message in a traceback: one note, the first."""
        notes = [note for note in getattr(self, "__notes__", ()) if note not in (_note(hint), _note(instead_of))]
        self.__notes__ = [_note(hint), *notes] if hint else notes

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles have every attribute, also `errno`, which OSError itself leaves out."""
        state = dict(self.__dict__)
        if isinstance(self, OSError) and self.errno is not None:
            state["errno"] = self.errno
        return _again, (type(self), *self.args), state

    def __str__(self) -> str:
        return self.message


def _note(hint: str) -> str:
    return f"hint: {hint}"


def _again(kind: type[SkerryError], *args: object) -> SkerryError:
    """An error without its attributes: its class may ask for more than the message."""
    error = (OSError if issubclass(kind, OSError) else Exception).__new__(kind, *args)
    Exception.__init__(error, *args)
    return error


class SkerryWarning(UserWarning):
    """The call succeeded, but probably not in the way the caller intended."""


class InvalidArgument(SkerryError, ValueError):
    code = "INVALID_ARGUMENT"


class TooLarge(InvalidArgument):
    """More than may be sent at once."""

    code = "TOO_LARGE"


class Unsupported(SkerryError, NotImplementedError):
    """`option` names what cannot be honoured, `providers` the providers that can."""

    code = "UNSUPPORTED"

    def __init__(
        self, message: str, *, option: str = "", providers: tuple[str, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.option = option
        self.providers = providers


class NewerVersion(Unsupported):
    """Something stored was written by a newer version of Skerry; nothing was done with it."""

    hint = "use the version of Skerry that wrote it, or a newer one"


class ProviderUnavailable(SkerryError):
    code = "PROVIDER_UNAVAILABLE"
    hint = "run `skerry doctor` to see what is missing"


class DiskLocked(ProviderUnavailable):
    """What is needed lies on an encrypted disk whose key is not here; nothing is lost."""

    code = "DISK_LOCKED"
    hint = "`skerry storage unlock --key file:PATH` on that machine, or set SKERRY_DISK_KEY there to where the key is"


class ConnectionLost(SkerryError, ConnectionError):
    code = "CONNECTION_LOST"
    retryable = True
    hint = "call reconnect(), or connect to the sandbox again; a command that was running may have been stopped"


class Unauthenticated(SkerryError, PermissionError):
    code = "UNAUTHENTICATED"


class Timeout(SkerryError, TimeoutError):
    code = "TIMEOUT"
    retryable = True


class ExecTimeout(Timeout):
    """A command ran out of time; `result` has what it wrote until then."""

    retryable = False
    hint = "give it a larger timeout"

    def __init__(self, message: str, result: ExecResult) -> None:
        super().__init__(message)
        self.result = result


class QuotaExceeded(SkerryError):
    code = "QUOTA_EXCEEDED"


class RateLimited(SkerryError):
    """Too many requests; `retry_after` is the number of seconds until the server accepts the next one."""

    code = "RATE_LIMITED"
    retryable = True
    hint = "wait as long as retry_after says"

    def __init__(self, message: str, *, retry_after: float = 1.0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class InternalError(SkerryError):
    """Something went wrong inside a server; its log says what, under `request_id`."""

    code = "INTERNAL"

    def __init__(self, message: str, *, request_id: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.request_id = request_id


class NotFound(SkerryError, LookupError):
    """A thing of a server without its own error class was not found: a user, a project, a key …"""

    code = "NOT_FOUND"


class Conflict(SkerryError):
    code = "CONFLICT"


class Corrupted(SkerryError):
    """Something stored or received is not what it should be; nothing was done with it."""

    code = "CORRUPTED"


class SandboxNotFound(SkerryError, LookupError):
    code = "SANDBOX_NOT_FOUND"
    hint = "it was destroyed, or its lifetime ended; Sandbox.list() has those that exist"


class SandboxStopped(SkerryError):
    code = "SANDBOX_STOPPED"
    hint = "start it"


class SandboxFailed(SkerryError):
    """The sandbox itself broke; whatever ran in it is gone."""

    code = "SANDBOX_FAILED"
    hint = "recover it, or destroy it; its files are kept until then"


class SnapshotNotFound(SkerryError, LookupError):
    code = "SNAPSHOT_NOT_FOUND"
    hint = "snapshots.list() shows those that exist"


class VolumeNotFound(SkerryError, LookupError):
    code = "VOLUME_NOT_FOUND"
    hint = "create it, or get it with create=True"


class TemplateNotFound(SkerryError, LookupError):
    code = "TEMPLATE_NOT_FOUND"
    hint = "`skerry template ls` shows those that exist"


class TemplateBuildFailed(SkerryError):
    """A step of a template failed, in its build or in a new sandbox; nothing is left of it.

    `step` names it; `log` is the end of what it wrote.
    """

    code = "TEMPLATE_BUILD_FAILED"
    hint = "the step's own output says why"

    def __init__(self, message: str, *, step: str, log: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.step = step
        self.log = log


class ProcessNotFound(SkerryError, ProcessLookupError):
    code = "PROCESS_NOT_FOUND"
    hint = "it has ended; processes.list() shows those that are known"


class CommandNotFound(SkerryError, FileNotFoundError):
    code = "COMMAND_NOT_FOUND"
    hint = "check the program's name and the sandbox's PATH"


class CommandFailed(SkerryError):
    """A command did not exit with 0 under `check=True`; `result` has its output and how it ended."""

    code = "COMMAND_FAILED"

    def __init__(self, message: str, result: ExecResult) -> None:
        super().__init__(message)
        self.result = result


class OutOfMemory(CommandFailed, MemoryError):
    code = "OUT_OF_MEMORY"
    hint = "give the sandbox more memory: resources=Resources(memory=…) or set_limits(memory=…)"


class GitError(SkerryError):
    """Git did not exit with 0; `result` has its output and how it ended."""

    code = "GIT_FAILED"

    def __init__(self, message: str, result: ExecResult, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.result = result


class RepositoryNotFound(GitError, LookupError):
    code = "REPOSITORY_NOT_FOUND"
    hint = "check the URL or the directory; a server may say this too when credentials are missing"


class PortClosed(SkerryError, ConnectionRefusedError):
    code = "PORT_CLOSED"
    retryable = True
    hint = "start the server first, or wait for it with ports.wait"


class FileError(SkerryError, OSError):
    code = "IO_ERROR"

    def __init__(self, message: str, *, errno: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        if errno is not None:
            self.errno = errno


class FileMissing(FileError, FileNotFoundError):
    code = "FILE_NOT_FOUND"
    hint = "check the path"


class PermissionDenied(FileError, PermissionError):
    code = "PERMISSION_DENIED"
    hint = 'check the permissions, or pass user="root"'


class IsADirectory(FileError, IsADirectoryError):
    code = "IS_A_DIRECTORY"


class NotADirectory(FileError, NotADirectoryError):
    code = "NOT_A_DIRECTORY"


class NotAFile(FileError):
    """A FIFO, socket or device where a regular file is meant."""

    code = "NOT_A_FILE"


class SymlinkLoop(FileError):
    """A path leads through links that lead back to themselves; `errno` is ELOOP."""

    code = "SYMLINK_LOOP"
    hint = "remove the link, or give the path that it should lead to"


class AlreadyExists(FileError, FileExistsError):
    code = "ALREADY_EXISTS"


class NotEmpty(FileError):
    code = "NOT_EMPTY"
    hint = "pass recursive=True"


class ReadOnly(FileError):
    code = "READ_ONLY"
    hint = "this part of the sandbox cannot be written; use /workspace, /home/user or /tmp"


class DiskFull(FileError):
    code = "DISK_FULL"
    hint = "remove files, or use a larger disk"


AGENT_ERRORS: dict[str, type[SkerryError]] = {
    error.code: error
    for error in (
        FileMissing,
        PermissionDenied,
        IsADirectory,
        NotADirectory,
        NotAFile,
        AlreadyExists,
        NotEmpty,
        DiskFull,
        ReadOnly,
        FileError,
        Conflict,
        PortClosed,
        CommandNotFound,
        InvalidArgument,
        ProcessNotFound,
        QuotaExceeded,
        Unauthenticated,
        Unsupported,
    )
}
"""The codes an agent may send; any other means a broken agent."""
AGENT_ELOOP = 40
"""Linux's number: an agent says INVALID_ARGUMENT with it for a loop of links."""


def agent_error(code: str, errno: int, message: str) -> SkerryError:
    """The error for what an agent reported."""
    error = AGENT_ERRORS.get(code)
    if error is None:
        return Corrupted(f"the agent sent an unknown error code {code[:40]!r}")
    text = message[:2000] or code
    if error is InvalidArgument and errno == AGENT_ELOOP:
        return SymlinkLoop(text, errno=ELOOP)
    if issubclass(error, FileError):
        return error(text, errno=errno)
    return error(text)
