"""The sandbox object and everything it does, derived once for all providers."""

from skerry.sdk._sync import (
    Connection,
    Env,
    ExecStream,
    Files,
    ForkResult,
    Forward,
    Git,
    Ports,
    Process,
    Processes,
    Sandbox,
    SandboxSnapshots,
    Snapshots,
    Templates,
    Terminal,
    Terminals,
    TerminalStream,
    Volumes,
    Watch,
)
from skerry.sdk.building import BuildProgress
from skerry.sdk.env import AsyncEnv
from skerry.sdk.events import EventCallback, EventType
from skerry.sdk.exec_stream import AsyncExecStream
from skerry.sdk.files import AsyncFiles
from skerry.sdk.git import AsyncGit
from skerry.sdk.git_data import GitBranch, GitCommit, GitFileStatus, GitStatus
from skerry.sdk.health import Health, HealthCheck, HealthReport
from skerry.sdk.instructions import InstructionsContext
from skerry.sdk.listing import SandboxPage, SandboxStatus
from skerry.sdk.output import OutputChunk, ProcessOutput, TerminalChunk, TerminalOutput
from skerry.sdk.ports import AsyncConnection, AsyncForward, AsyncPorts
from skerry.sdk.process import AsyncProcess
from skerry.sdk.processes import AsyncProcesses
from skerry.sdk.sandbox import AsyncForkResult, AsyncSandbox
from skerry.sdk.search import Replacement, SearchMatch, SearchResult
from skerry.sdk.snapshots import AsyncSandboxSnapshots, AsyncSnapshots, SnapshotNode
from skerry.sdk.sources import GitSource, TarSource
from skerry.sdk.templates import AsyncTemplates
from skerry.sdk.terminal import AsyncTerminal
from skerry.sdk.terminal_stream import AsyncTerminalStream
from skerry.sdk.terminals import AsyncTerminals
from skerry.sdk.volumes import AsyncVolumes
from skerry.sdk.watch import AsyncWatch

compute = Sandbox.create
"""Another word for `Sandbox.create`."""

__all__ = [
    "AsyncConnection",
    "AsyncEnv",
    "AsyncExecStream",
    "AsyncFiles",
    "AsyncForkResult",
    "AsyncForward",
    "AsyncGit",
    "AsyncPorts",
    "AsyncProcess",
    "AsyncProcesses",
    "AsyncSandbox",
    "AsyncSandboxSnapshots",
    "AsyncSnapshots",
    "AsyncTemplates",
    "AsyncTerminal",
    "AsyncTerminalStream",
    "AsyncTerminals",
    "AsyncVolumes",
    "AsyncWatch",
    "BuildProgress",
    "Connection",
    "Env",
    "EventCallback",
    "EventType",
    "ExecStream",
    "Files",
    "ForkResult",
    "Forward",
    "Git",
    "GitBranch",
    "GitCommit",
    "GitFileStatus",
    "GitSource",
    "GitStatus",
    "Health",
    "HealthCheck",
    "HealthReport",
    "InstructionsContext",
    "OutputChunk",
    "Ports",
    "Process",
    "ProcessOutput",
    "Processes",
    "Replacement",
    "Sandbox",
    "SandboxPage",
    "SandboxSnapshots",
    "SandboxStatus",
    "SearchMatch",
    "SearchResult",
    "SnapshotNode",
    "Snapshots",
    "TarSource",
    "Templates",
    "Terminal",
    "TerminalChunk",
    "TerminalOutput",
    "TerminalStream",
    "Terminals",
    "Volumes",
    "Watch",
    "compute",
]
