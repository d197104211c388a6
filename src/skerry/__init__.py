"""Skerry: isolated sandboxes for running code.

from skerry import Sandbox

with Sandbox.create() as sandbox:
    print(sandbox.exec("uname -a").stdout)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from skerry.core.errors import (
        AlreadyExists,
        CommandFailed,
        CommandNotFound,
        Conflict,
        ConnectionLost,
        Corrupted,
        DiskFull,
        ExecTimeout,
        FileError,
        FileMissing,
        InvalidArgument,
        IsADirectory,
        NotADirectory,
        NotAFile,
        NotEmpty,
        OutOfMemory,
        PermissionDenied,
        PortClosed,
        ProcessNotFound,
        ProviderUnavailable,
        QuotaExceeded,
        ReadOnly,
        SandboxFailed,
        SandboxNotFound,
        SandboxStopped,
        SkerryError,
        Timeout,
        Unauthenticated,
        Unsupported,
    )
    from skerry.core.models import (
        CodeResult,
        Event,
        ExecResult,
        ExecStatus,
        FileInfo,
        ProcessInfo,
        Resources,
        SandboxInfo,
        SandboxSpec,
        Skipped,
        State,
        Transfer,
        Usage,
    )
    from skerry.sdk import (
        AsyncEnv,
        AsyncExecStream,
        AsyncFiles,
        AsyncProcess,
        AsyncProcesses,
        AsyncSandbox,
        Env,
        ExecStream,
        Files,
        OutputChunk,
        Process,
        Processes,
        ProcessOutput,
        Sandbox,
        SandboxPage,
        SandboxStatus,
        compute,
    )

_HOMES = {
    "skerry.core.errors": (
        "AlreadyExists",
        "CommandFailed",
        "CommandNotFound",
        "Conflict",
        "ConnectionLost",
        "Corrupted",
        "DiskFull",
        "ExecTimeout",
        "FileError",
        "FileMissing",
        "InvalidArgument",
        "IsADirectory",
        "NotADirectory",
        "NotAFile",
        "NotEmpty",
        "OutOfMemory",
        "PermissionDenied",
        "PortClosed",
        "ProcessNotFound",
        "ProviderUnavailable",
        "QuotaExceeded",
        "ReadOnly",
        "SandboxFailed",
        "SandboxNotFound",
        "SandboxStopped",
        "SkerryError",
        "Timeout",
        "Unauthenticated",
        "Unsupported",
    ),
    "skerry.core.models": (
        "CodeResult",
        "Event",
        "ExecResult",
        "ExecStatus",
        "FileInfo",
        "ProcessInfo",
        "Resources",
        "SandboxInfo",
        "SandboxSpec",
        "Skipped",
        "State",
        "Transfer",
        "Usage",
    ),
    "skerry.sdk": (
        "AsyncEnv",
        "AsyncExecStream",
        "AsyncFiles",
        "AsyncProcess",
        "AsyncProcesses",
        "AsyncSandbox",
        "Env",
        "ExecStream",
        "Files",
        "OutputChunk",
        "Process",
        "ProcessOutput",
        "Processes",
        "Sandbox",
        "SandboxPage",
        "SandboxStatus",
        "compute",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AlreadyExists",
    "AsyncEnv",
    "AsyncExecStream",
    "AsyncFiles",
    "AsyncProcess",
    "AsyncProcesses",
    "AsyncSandbox",
    "CodeResult",
    "CommandFailed",
    "CommandNotFound",
    "Conflict",
    "ConnectionLost",
    "Corrupted",
    "DiskFull",
    "Env",
    "Event",
    "ExecResult",
    "ExecStatus",
    "ExecStream",
    "ExecTimeout",
    "FileError",
    "FileInfo",
    "FileMissing",
    "Files",
    "InvalidArgument",
    "IsADirectory",
    "NotADirectory",
    "NotAFile",
    "NotEmpty",
    "OutOfMemory",
    "OutputChunk",
    "PermissionDenied",
    "PortClosed",
    "Process",
    "ProcessInfo",
    "ProcessNotFound",
    "ProcessOutput",
    "Processes",
    "ProviderUnavailable",
    "QuotaExceeded",
    "ReadOnly",
    "Resources",
    "Sandbox",
    "SandboxFailed",
    "SandboxInfo",
    "SandboxNotFound",
    "SandboxPage",
    "SandboxSpec",
    "SandboxStatus",
    "SandboxStopped",
    "SkerryError",
    "Skipped",
    "State",
    "Timeout",
    "Transfer",
    "Unauthenticated",
    "Unsupported",
    "Usage",
    "__version__",
    "compute",
]


def __getattr__(name: str) -> object:
    """Each name is imported when it is first used, so that `import skerry` costs next to nothing."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
