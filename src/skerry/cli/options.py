"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from skerry.cli.declare import Argument, Option, Seconds

if TYPE_CHECKING:
    from skerry.core import VolumeMount


MOUNT_WORDS = ("ro", "rw", "size", "persistent", "temporary", "existing")
VOLUME_HELP = (
    "Mount a volume at PATH. OPTIONS, with commas between them: ro; size=SIZE, persistent or temporary, which make the "
    "volume if it is missing; existing, which it must be without these. Repeatable."
)


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class Network(StrEnum):
    NONE = "none"
    OPEN = "open"


class OnTimeout(StrEnum):
    STOP = "stop"
    DESTROY = "destroy"
    PAUSE = "pause"


def _lifetime_help() -> str:
    """The help of --lifetime, with the default and the maximum of this machine; a server has other ones."""
    from skerry.core import InvalidArgument, human_duration, limits

    what = "Let it run for at most this long from its last start, such as 90s or 2h"
    try:
        bounds = limits()
    except InvalidArgument:  # the command itself reports it
        return f"{what}; SKERRY_LIFETIME is the default, SKERRY_MAX_LIFETIME the maximum."
    return f"{what}: {human_duration(bounds.lifetime)} by default, at most {human_duration(bounds.max_lifetime)}."


Output = Annotated[Format, Option("-o", "--output", help="Print in this format.")]
SandboxName = Annotated[str, Argument(metavar="SANDBOX", help="The sandbox's id or name.", show_default=False)]
ProcessId = Annotated[
    int | None,
    Argument(metavar="[PROCESS]", help="The process's id, as `exec --detach` prints it.", show_default=False),
]
Env = Annotated[
    list[str] | None,
    Option("--env", "-e", metavar="K=V", help="Set an environment variable; K alone passes yours. Repeatable."),
]
Name = Annotated[str | None, Option("--name", metavar="NAME", help="Give it this unique name.")]
Lifetime = Annotated[Seconds | None, Option("--lifetime", metavar="TIME", help=_lifetime_help)]
OnTimeoutOption = Annotated[
    OnTimeout | None,
    Option(
        "--on-timeout",
        help="Do this after --lifetime: 'stop' keeps its files. By default, a sandbox with a name is stopped, one "
        "without is destroyed.",
        show_default=False,
    ),
]
Memory = Annotated[
    str | None, Option("--memory", "-m", metavar="SIZE", help="Limit its memory, such as 512MB or 2GiB.")
]
Cpu = Annotated[float | None, Option("--cpu", metavar="CORES", help="Limit its CPU cores, such as 0.5 or 2.")]
Pids = Annotated[int | None, Option("--pids", metavar="N", help="Limit its processes and threads at once.")]
Disk = Annotated[str | None, Option("--disk", metavar="SIZE", help="Limit what it may write, such as 500MB or 5GB.")]
Snapshot = Annotated[
    str | None, Option("--snapshot", metavar="SNAPSHOT", help="Begin with this snapshot, by id or name.")
]
AutoStop = Annotated[
    Seconds | None,
    Option("--auto-stop", metavar="TIME", help="Stop it after this long without work in it, such as 30m."),
]
AutoDelete = Annotated[
    Seconds | None,
    Option("--auto-delete", metavar="TIME", help="Destroy it after this long without work in it, such as 2d."),
]
Encrypted = Annotated[bool | None, Option("--encrypted", help="Encrypt on disk what it writes.", show_default=False)]
Volume = Annotated[
    list[str] | None,
    Option("--volume", "-v", metavar="NAME:PATH[:SUBPATH][:OPTIONS]", help=VOLUME_HELP),
]
Key = Annotated[
    str | None,
    Option("--key", metavar="WHERE", help="Use this encryption key: file:PATH, env:NAME or command:PROGRAM."),
]
NetworkOption = Annotated[Network, Option("--network", help="Choose its network: 'open' lets it reach the network.")]
User = Annotated[str | None, Option("--user", "-u", metavar="USER", help="Run as this user of the sandbox.")]
Sudo = Annotated[bool, Option("--sudo", help="Run as root of the sandbox.")]
Workdir = Annotated[str | None, Option("--workdir", "-w", metavar="DIR", help="Run in this directory.")]
CommandTimeout = Annotated[
    Seconds | None,
    Option("--timeout", metavar="TIME", help="Kill the command after this long, such as 90s (exit 124)."),
]
Interactive = Annotated[
    bool,
    Option("--interactive", "-i", help="Pass on what you type even if the output goes to a file or a pipe."),
]
Tty = Annotated[bool, Option("--tty", "-t", help="Give it a terminal; without -t, it gets one if you have one.")]
Template = Annotated[
    str | None,
    Option("--template", "-T", metavar="NAME", help="Begin with this template, such as python or node:22."),
]
Image = Annotated[
    str | None,
    Option("--image", metavar="IMAGE", help="Begin with docker://NAME:TAG, or an OCI or `docker save` archive."),
]
Source = Annotated[
    str | None,
    Option("--source", metavar="URL", help="Fetch a git repository or tar archive into its directory."),
]


def parse_env(assignments: list[str] | None) -> dict[str, str]:
    """The variables given with --env. Raises InvalidArgument."""
    import os

    from skerry.core import InvalidArgument

    env: dict[str, str] = {}
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not name:
            raise InvalidArgument(f"--env {assignment!r} has no name", hint="write it like --env NAME=value")
        if not equals and name not in os.environ:
            raise InvalidArgument(f"--env {name}: you have no such variable to pass", hint=f"write --env {name}=value")
        env[name] = value if equals else os.environ[name]
    return env


def parse_volumes(volumes: list[str] | None) -> list[VolumeMount]:
    """The mounts given with --volume. Raises InvalidArgument."""
    from skerry.core import InvalidArgument, VolumeMount

    mounts = []
    for text in volumes or []:
        name, *rest = text.split(":")
        given = [word.partition("=") for word in rest[-1].split(",")] if rest[1:] else []
        if given and all((word == "size") == bool(equals) and word in MOUNT_WORDS for word, equals, _ in given):
            del rest[-1]
        else:
            given = []
        if len(rest) not in (1, 2):
            raise InvalidArgument(f"--volume {text!r} has no path", hint="write it like models:/models or models:/m:ro")
        words = {word: value for word, _, value in given}
        mounts.append(
            VolumeMount(
                name=name,
                path=rest[0],
                subpath="".join(rest[1:]),
                read_only="ro" in words,
                size=words.get("size"),
                persistent=True if "persistent" in words else False if "temporary" in words else None,
                mount_existing="existing" in words,
            )
        )
    return mounts
