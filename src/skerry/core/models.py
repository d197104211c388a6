"""What a sandbox is, was and did: plain frozen data shared by every layer."""

from __future__ import annotations

import shlex
from dataclasses import field, fields
from enum import StrEnum
from typing import Literal

from skerry._model import Model
from skerry.core import errors
from skerry.core.cut import Cut, text_of


class State(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    PAUSED = "paused"
    ARCHIVED = "archived"
    RESTORING = "restoring"
    FAILED = "failed"
    DESTROYED = "destroyed"


class ExecStatus(StrEnum):
    RUNNING = "running"
    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    CANCELLED = "cancelled"


class Resources(Model):
    """Limits asked for; None means the provider's default."""

    cpu: float | None = None
    memory: int | None = None
    disk: int | None = None
    pids: int | None = None
    gpu: str | None = None


class Room(Model):
    """What all sandboxes of a provider use together, and what is left for them, in bytes; None: not known."""

    memory_used: int | None = None
    disk_size: int | None = None
    disk_used: int | None = None
    disk_free: int | None = None


class Usage(Model):
    """What a sandbox uses now. None: this provider cannot tell."""

    cpu_percent: float
    """Of one core, since the sandbox was last asked (or over its life)."""
    cpu_seconds: float
    memory_used: int
    memory_total: int | None
    disk_used: int | None
    disk_total: int | None
    network_rx: int
    network_tx: int
    pids: int
    pids_limit: int | None


class VolumeMount(Model):
    """A volume, or a directory of it, mounted at a path of a sandbox."""

    name: str
    path: str
    subpath: str = ""
    """Relative to the volume; made if it is not there, unless the mount is read-only."""
    read_only: bool = False
    size: int | str | None = None
    """The most that a volume made for this sandbox may hold, in bytes or as text; None: no limit."""
    persistent: bool | None = None
    """Whether a volume made for this sandbox outlives its sandboxes. With this or `size`, a missing volume is made."""
    mount_existing: bool = False
    """Whether the volume must exist, as it must without `size` and `persistent`."""

    @property
    def makes(self) -> bool:
        """Whether a missing volume is made."""
        return self.size is not None or self.persistent is not None


OnTimeout = Literal["stop", "destroy", "pause"]
"""What happens to a sandbox at its timeout. `stop` keeps its files, `pause` its processes as well."""


class SandboxSpec(Model):
    """What `create` was asked for, checked. Its repr has the names of secrets, but not their values."""

    name: str | None = None
    template: str = "host"
    """A template's name, or its `BuiltTemplate.reference`."""
    snapshot: str | None = None
    """The id of the snapshot it begins with; its template is the snapshot's then."""
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    """As env, but of this sandbox alone: not in its snapshots, clones and archives."""
    secrets_of: str | None = None
    """The id of a sandbox whose secrets it gets as well."""
    metadata: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    timeout: float = 3600.0
    """The longest time it runs, in seconds from its last start."""
    on_timeout: OnTimeout | None = None
    """What happens to it then. None: its name decides, see `at_timeout`."""
    auto_stop: float | None = None
    """Seconds without work in it until it is stopped; the next two count from the same moment."""
    auto_archive: float | None = None
    auto_delete: float | None = None
    purpose: str = "development"
    resources: Resources = field(default_factory=Resources)
    volumes: tuple[VolumeMount, ...] = ()
    network: Literal["none", "open"] = "none"
    user: str | None = None
    """None: the template's."""
    workdir: str | None = None
    idempotency_key: str | None = None
    source: str | None = None
    """With an idempotency key: a digest of what its working directory begins with. Another digest is another spec."""
    isolation: str | None = None
    encrypted: bool | None = None
    """Whether what it writes is encrypted on disk. None: as what it begins with, else not."""
    instructions: str | None = None
    """The text that `instructions()` gives; None: the default."""
    leased: bool = False
    """Whether it belongs to the calling process from the start, and ends with it, until the lease is given back."""
    unsynced: bool = False
    """Whether what its programs flush to disk may stay in memory: quicker, but not for a sandbox that starts again."""

    @property
    def at_timeout(self) -> OnTimeout:
        """What happens to it at its timeout: unless asked otherwise, one with a name is stopped, others destroyed."""
        return self.on_timeout or ("destroy" if self.name is None else "stop")

    def __repr__(self) -> str:
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        shown["secrets"] = dict.fromkeys(self.secrets, "***")
        return f"SandboxSpec({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class Script(Model, kw_only=False):
    """A line or a whole script for a sandbox's shell, and the user who runs it; None: the sandbox's."""

    run: str
    user: str | None = None


class BuiltTemplate(Model):
    """A template that is built: what a sandbox made from it begins with."""

    name: str
    """With its version."""
    id: str
    """A hash over all that decides what sandboxes get: the same id is the same template."""
    description: str = ""
    layers: tuple[str, ...] = ()
    """The digests of the trees it is made of, topmost first."""
    base: str | None = None
    """The id of the template it was built on; None: none that was built."""
    host: bool = False
    """Whether it lies over this machine's own system files."""
    env: dict[str, str] = field(default_factory=dict)
    user: str = "user"
    workdir: str = "/workspace"
    ports: tuple[int, ...] = ()
    resources: Resources = field(default_factory=Resources)
    """What a sandbox gets that does not ask for something else."""
    post_create: tuple[Script, ...] = ()
    post_start: tuple[Script, ...] = ()
    image: str | None = None
    """The digest of the image it was made from."""
    aliases: tuple[str, ...] = ()
    """Other names that find it."""
    origin: str | None = None
    """For a template that was built again: the id it would have if nothing had been there."""
    superseded: bool = False
    """Whether another one was built in its place: found by its id alone, and gone when nothing needs it."""
    created_at: float = 0.0
    size: int | None = None
    """Bytes of its topmost layer alone; None where counting would mean to look at every file."""

    @property
    def reference(self) -> str:
        """What `SandboxSpec.template` has: this template, and no later one of the same name."""
        return f"{self.name}@{self.id}"


class SandboxInfo(Model):
    """A sandbox as its provider sees it. Times are seconds since the epoch."""

    id: str
    name: str | None
    provider: str
    state: State
    created_at: float
    started_at: float | None
    last_active_at: float | None
    """When work was last done in it, to within a few seconds: a command, a terminal, a port or a file that somebody
    used; CPU time of what runs in the background too, if an end by inactivity was asked for."""
    expires_at: float | None
    resources: Resources
    """The limits in force."""
    template: str
    isolation: str
    network: str
    user: str
    workdir: str
    purpose: str
    metadata: dict[str, str]
    labels: dict[str, str]
    env_names: tuple[str, ...]
    leased_to: int | None
    """The process this sandbox ends with, if it does."""
    reason: str | None
    """Why it is failed or stopped, where it was not asked for."""
    snapshot: str | None = None
    """The snapshot its files were last made equal to, or that was last taken of it."""
    volumes: tuple[VolumeMount, ...] = ()
    ports: tuple[int, ...] = ()
    """Those its template serves; the first is the one to look at."""
    template_id: str | None = None
    """Which of the templates of that name; None for `host`."""
    prepared: bool = False
    """Whether it was created with a lease that was then given back: its `create` is complete, whatever came after."""
    timeout: float | None = None
    """The longest time it runs, in seconds from each start; None: not known."""
    on_timeout: OnTimeout = "destroy"
    """What happens to it at `expires_at`."""
    on_timeout_asked: OnTimeout | None = None
    """What was asked for; None: `on_timeout` follows from whether it has a name."""
    auto_stop: float | None = None
    """Seconds without work in it until it is stopped; the next two count from the same moment."""
    auto_archive: float | None = None
    auto_delete: float | None = None
    encrypted: bool = False
    """Whether what it writes is encrypted on disk."""
    instructions: str | None = None
    """The text that `create(instructions=…)` was given; None: none, or a function, which only its own process has."""

    def uptime(self, now: float) -> float:
        return 0.0 if self.started_at is None else max(0.0, now - self.started_at)


SnapshotKind = Literal["files", "disk", "memory"]


class SnapshotInfo(Model):
    """A sandbox's files as they were at a moment, with what is needed to continue from there."""

    id: str
    name: str | None
    description: str
    sandbox_id: str
    """Where it was taken; that sandbox may be gone."""
    parent: str | None
    """The snapshot before it in the same line of development."""
    created_at: float
    kind: SnapshotKind
    """`files`: copied one by one; `disk`: taken by the file system at once; `memory`: with its processes."""
    size: int | None
    """Bytes of what the sandbox itself had written; None where counting would mean to look at every file."""
    template: str
    env_names: tuple[str, ...]
    workdir: str
    encrypted: bool = False
    """Whether its files are encrypted on disk."""


class ExportInfo(Model):
    """What was written as the state of a sandbox."""

    source: str
    """The id of the sandbox or snapshot."""
    template: str
    env_names: tuple[str, ...]
    """The variables in it that are not its template's."""
    encrypted: bool
    layers: int
    entries: int
    files: int
    skipped: int
    """Sockets: they mean nothing without the process that listens."""
    content_bytes: int
    bytes_written: int
    sha256: str
    """Over the hashes of all entries, so it stands for the whole content."""


class Changes(Model):
    """What is to be different when a sandbox starts again, or in its copy; None: as it is."""

    env: dict[str, str] | None = None
    """Over what is set; an empty mapping changes nothing."""
    resources: Resources | None = None
    template: str | None = None


class VolumeInfo(Model):
    """A directory that sandboxes share and that outlives them."""

    name: str
    created_at: float
    size: int | None
    """The most it may hold; None: no limit."""
    used: int | None
    """None where counting would mean to look at every file."""
    temporary: bool
    """Goes with the last sandbox that has it."""
    sandboxes: tuple[str, ...]
    """The ids of those that have it, running or not."""
    encrypted: bool = False
    """Whether its files are encrypted on disk."""


class TemplateInfo(Model):
    """A prepared environment that sandboxes begin with."""

    name: str
    version: str
    description: str
    aliases: tuple[str, ...]
    built: bool
    """Whether the next sandbox can begin at once."""
    digest: str
    """Of all that decides what is in it; empty if nothing was built."""
    size: int | None
    built_at: float | None
    ports: tuple[int, ...]


ErrorType = Literal["connection-lost", "out-of-memory", "corruption", "failed"]
"""The `type` of an event `error`: its agent cannot be reached or is gone; a command was killed for lack of memory; what
was read makes no sense; it could not be brought back."""


class Event(Model):
    """Something that happened to a sandbox. `cursor` orders them.

    The `data` of an `error` has `type` (an ErrorType), `code` and `reason`, and `running`, the command that it ended,
    where that is known. `stopped` has `reason` where nobody asked for it: `timeout` or `idle`.
    """

    cursor: int
    type: str
    sandbox_id: str
    time: float
    data: dict[str, str] = field(default_factory=dict)


class ExecResult(Model):
    """How a command ended and what it wrote."""

    command: str
    exit_code: int | None
    """None unless it exited by itself."""
    stdout_bytes: bytes
    """What was kept: where bytes were left out, both sides of `stdout_cut` follow each other."""
    stderr_bytes: bytes
    duration: float
    pid: int
    status: ExecStatus
    """`out_of_memory`: `oom_killed`, and it was killed or did not exit with 0."""
    signal: int | None = None
    oom_killed: bool = False
    """Whether the kernel killed the command, or a process that it started, for lack of memory while it ran.

    A command may continue after that and exit with 0; then its status is `exited`.
    """
    truncated: bool = False
    dropped_bytes: int = 0
    """Bytes left out of stdout and stderr together."""
    stdout_cut: Cut | None = None
    """Where bytes were left out of stdout; None: it is complete."""
    stderr_cut: Cut | None = None

    @property
    def stdout(self) -> str:
        """As text. Where bytes were left out is a line `[… 588,695 bytes left out …]`, which counts torn lines too."""
        return text_of(self.stdout_bytes, self.stdout_cut)

    @property
    def stderr(self) -> str:
        return text_of(self.stderr_bytes, self.stderr_cut)

    @property
    def timed_out(self) -> bool:
        return self.status is ExecStatus.TIMED_OUT

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def check(self) -> None:
        """Raises ExecTimeout, OutOfMemory or CommandFailed unless it exited with 0."""
        if self.ok:
            return
        if self.timed_out:
            raise errors.ExecTimeout(f"{self.command} ran out of time after {self.duration:.3g} s", self)
        if self.status is ExecStatus.OUT_OF_MEMORY:
            how = "was killed" if self.exit_code is None else f"exited with {self.exit_code}"
            raise errors.OutOfMemory(f"{self.command} {how}: out of memory", self)
        how = f"exited with {self.exit_code}" if self.signal is None else f"was killed by signal {self.signal}"
        if self.status is ExecStatus.CANCELLED:
            how = "was cancelled"
        tail = self.stderr_bytes[-4096:].decode("utf-8", "replace").strip().rsplit("\n", 1)[-1][-300:]
        raise errors.CommandFailed(f"{self.command} {how}" + (f": {tail}" if tail else ""), self)


class CodeResult(ExecResult):
    """How a snippet ended and what it wrote."""

    @property
    def result(self) -> str:
        """Its text output: all that it wrote to stdout."""
        return self.stdout


FileType = Literal["file", "dir", "link", "fifo", "socket", "char", "block"]


class FileInfo(Model):
    """A file, directory or link inside a sandbox."""

    path: str
    type: FileType
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    mtime_ns: int
    inode: int
    target: str | None
    owner: str | None
    group: str | None
    etag: str
    """Changes whenever the content may have; `write(if_match=…)` takes it."""

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rsplit("/", 1)[-1] or "/"

    @property
    def is_dir(self) -> bool:
        return self.type == "dir"


class Skipped(Model):
    """Something that a transfer left out: relative to its root, and why."""

    path: str
    reason: str
    """`fifo`, `socket`, `device`, `vanished` or `excluded`."""


class Transfer(Model):
    """What an upload or a download has moved."""

    info: FileInfo
    """The file or directory inside the sandbox."""
    files: int
    directories: int
    links: int
    bytes: int
    """Of content: holes do not count."""
    skipped: tuple[Skipped, ...]
    xattrs_lost: int
    """Attributes that the other file system did not take."""


class ProcessInfo(Model):
    """A process of a sandbox, running or ended."""

    id: int
    pid: int
    argv: tuple[str, ...]
    user: str
    status: ExecStatus
    exit_code: int | None
    signal: int | None
    started_at: float
    stdout_bytes: int
    stderr_bytes: int

    @property
    def command(self) -> str:
        return shlex.join(self.argv)


class TerminalInfo(Model):
    """A terminal of a sandbox, running or ended."""

    id: int
    pid: int
    argv: tuple[str, ...]
    user: str
    cols: int
    rows: int
    status: ExecStatus
    exit_code: int | None
    signal: int | None
    started_at: float
    output_bytes: int

    @property
    def command(self) -> str:
        return shlex.join(self.argv)


class TerminalExit(Model):
    """How the program of a terminal ended."""

    exit_code: int | None
    """None unless it exited by itself."""
    signal: int | None
    status: ExecStatus
    duration: float
    oom_killed: bool = False
    """Whether the kernel killed it, or a process that it started, for lack of memory."""


class FileEventKind(StrEnum):
    CREATED = "created"
    MODIFIED = "modified"
    REMOVED = "removed"
    RENAMED = "renamed"
    ATTRIBUTES = "attributes"
    OVERFLOW = "overflow"


class FileEvent(Model):
    """A change below a path that is watched."""

    kind: FileEventKind
    """`overflow`: events were lost; look again. The events after it are complete again."""
    path: str
    """Relative to the watched path; empty: that itself."""
    old_path: str | None = None
    """Where it was before, of `renamed`."""
    is_dir: bool | None = None
    """None: not known."""


class ListeningPort(Model):
    """A TCP port of a sandbox that a process listens on."""

    port: int
    address: str
    """The address it is bound to; 0.0.0.0 and :: are all of them."""
    uid: int
    """The user whose process listens."""
