"""The commands and groups of commands by name, and the help of the program as a whole, which needs nothing else."""

from __future__ import annotations

COMMANDS = {
    "create": ("Sandboxes", "commands.sandboxes", "create", "Create a sandbox and print its id."),
    "ps": ("Sandboxes", "commands.sandboxes", "ps", "List the sandboxes, oldest first."),
    "info": (
        "Sandboxes",
        "commands.sandboxes",
        "info",
        "Show everything about a sandbox: state, limits, what it uses.",
    ),
    "rm": ("Sandboxes", "commands.sandboxes", "rm", "Destroy sandboxes with everything in them; print their ids."),
    "stop": ("Lifecycle", "commands.lifecycle", "stop", "Stop sandboxes and keep their files; print their ids."),
    "start": ("Lifecycle", "commands.lifecycle", "start", "Start sandboxes that do not run; print their ids."),
    "restart": (
        "Lifecycle",
        "commands.lifecycle",
        "restart",
        "Stop sandboxes and start them, with changes if you like.",
    ),
    "pause": (
        "Lifecycle",
        "commands.lifecycle",
        "pause",
        "Freeze the processes of sandboxes in memory; print their ids.",
    ),
    "resume": (
        "Lifecycle",
        "commands.lifecycle",
        "resume",
        "Resume the processes of paused sandboxes; print their ids.",
    ),
    "recover": ("Lifecycle", "commands.lifecycle", "recover", "Start sandboxes that have failed, with their files."),
    "reset": ("Lifecycle", "commands.lifecycle", "reset", "Bring sandboxes back to how they began; print their ids."),
    "run": ("Running", "commands.run", "run", "Run a command in a new sandbox, then remove the sandbox."),
    "exec": ("Running", "commands.run", "exec_", "Run a command in a sandbox that exists."),
    "sh": ("Running", "commands.shell", "shell", "Open a shell in a sandbox."),
    "attach": ("Running", "commands.shell", "attach", "Return to a terminal, or join one in use."),
    "logs": ("Running", "commands.logs", "logs", "Print what a background process has written."),
    "kill": ("Running", "commands.run", "kill", "Kill a background process, or all of them."),
    "ls": ("Files", "commands.files", "list_", "List a directory of a sandbox."),
    "cat": ("Files", "commands.files", "cat", "Write a file of a sandbox to stdout, byte for byte."),
    "cp": ("Files", "commands.cp", "cp", "Copy files and directories into and out of sandboxes."),
    "edit": ("Files", "commands.edit", "edit", "Edit a file of a sandbox in your editor."),
    "watch": ("Files", "commands.watch", "watch", "Print what changes in a sandbox, one event on a line."),
    "clone": ("Keeping", "commands.snapshots", "clone", "Make a running copy of a sandbox and print its id."),
    "fork": ("Keeping", "commands.snapshots", "fork", "Make several copies of a sandbox at once; print their ids."),
    "export": ("Keeping", "commands.export", "export", "Write a sandbox or snapshot as one file."),
    "import": ("Keeping", "commands.export", "import_", "Make a sandbox from an exported file and print its id."),
    "archive": ("Keeping", "commands.export", "archive", "Put sandboxes into cold storage; print their ids."),
    "port": ("Network", "commands.ports", "port", "List the ports of a sandbox, or forward one to here."),
    "usage": ("Looking", "commands.inspect", "usage", "Show what a sandbox uses now."),
    "events": ("Looking", "commands.inspect", "events", "List what happened to a sandbox, oldest first."),
    "up": ("Server", "commands.server", "up", "Serve sandboxes of this machine over HTTP, until Ctrl-C."),
    "status": ("Server", "commands.server", "status", "Show whether a server runs on this machine, and its health."),
    "down": ("Server", "commands.server", "down", "Stop the server of this machine."),
    "backup": ("Server", "commands.server", "backup", "Back up the server's database; print where."),
    "login": ("Server", "commands.accounts", "login", "Log in to a server: remember it and a key."),
    "logout": ("Server", "commands.accounts", "logout", "Forget the server that `login` remembers."),
    "whoami": ("Server", "commands.accounts", "whoami", "Show which server commands talk to, and as whom."),
    "gc": ("Machine", "commands.sandboxes", "gc", "Remove what nobody owns any more."),
    "doctor": ("Machine", "commands.doctor", "doctor", "Say what this machine can do and what is missing."),
    "audit": ("Machine", "commands.audit", "audit", "Attack a new sandbox from inside and show what was denied."),
    "bench": ("Machine", "commands.bench", "bench", "Measure how fast sandboxes are on this machine."),
    "conformance": ("Machine", "commands.conformance", "conformance", "Show whether a provider keeps the contract."),
    "completion": (
        "Machine",
        "completion.scripts",
        "completion",
        "Print a script that completes commands for a shell.",
    ),
    "help": ("Machine", "help", "help_", "Show what a command does, its options and examples."),
}
"""For each command its heading in the help, its module here, its function, and the first sentence of its docstring."""
GROUPS = {
    "snapshot": ("Keeping", "commands.snapshots", "app", "Keep the files of sandboxes, and return to them."),
    "template": ("Keeping", "commands.templates", "app", "Build templates that sandboxes begin with, and keep them."),
    "volume": ("Keeping", "commands.volumes", "app", "Keep directories that sandboxes share and that outlive them."),
    "config": ("Server", "commands.server", "config", "Show the server's configuration."),
    "user": ("Server", "commands.accounts", "users", "Manage the users of a server, as an administrator."),
    "key": ("Server", "commands.accounts", "keys", "Manage your API keys."),
    "project": ("Server", "commands.accounts", "projects", "Manage projects and their members."),
    "storage": ("Machine", "commands.storage", "app", "Show where this machine keeps the files of sandboxes."),
}
"""The same for each group of commands, with its object in the module."""
COMMAND_LAST = ("run", "exec", "sh")
"""What follows the first word of these belongs to the command that they run."""
AT_ONCE = ("create", "exec", "info", "ps", "run")
"""The commands that do without typer if the command line is certainly right."""

HEADINGS = ("Sandboxes", "Lifecycle", "Running", "Files", "Keeping", "Network", "Looking", "Server", "Machine")
"""In the order of the help."""
ABOUT = """\
Run code in isolated sandboxes.

\b
Example:
  skerry run -- python3 -c 'print(6 * 7)'"""
OPTIONS = {"--version": "Print the version and exit.", "-h, --help": "Show this message and exit."}


MEANT = {
    "list": "ls",
    "show": "info",
    "inspect": "info",
    "delete": "rm",
    "del": "rm",
    "remove": "rm",
    "destroy": "rm",
    "new": "create",
    "add": "create",
    "make": "create",
}
"""Words of other programs, in groups of commands too, and the command they mean here."""
MEANT_ALONE = {
    "list": "ps",
    "sandboxes": "ps",
    "images": "template ls",
    "templates": "template ls",
    "image": "template",
    "build": "template build",
    "pull": "template build --image",
    "volumes": "volume ls",
    "snapshots": "snapshot ls",
    "keys": "key ls",
    "users": "user ls",
    "projects": "project ls",
    "ports": "port",
    "commit": "snapshot create",
    "snap": "snapshot create",
    "save": "export",
    "load": "import",
    "copy": "cp",
    "push": "cp",
    "download": "cp",
    "upload": "cp",
    "shell": "sh",
    "ssh": "sh",
    "bash": "sh",
    "console": "sh",
    "enter": "sh",
    "connect": "sh",
    "top": "usage",
    "stats": "usage",
    "suspend": "pause",
    "freeze": "pause",
    "unpause": "resume",
    "prune": "gc",
    "clean": "gc",
    "serve": "up",
    "server": "up",
    "signin": "login",
    "env": "info",
    "version": "--version",
    "v": "--version",
    "check": "doctor",
}
"""The same where no group is named."""


def outline() -> str:
    """The help of the program as a whole: every command in a line, under its heading."""
    text = ["Usage: skerry [OPTIONS] COMMAND [ARGS]...", ""]
    text += ["" if not line else f"  {line}" for line in ABOUT.splitlines() if line != "\b"]
    text += ["", "Options:", *_aligned(OPTIONS, max(map(len, OPTIONS)))]
    shown = COMMANDS | GROUPS
    for heading in HEADINGS:
        rows = {name: summary for name, (under, _, _, summary) in shown.items() if under == heading}
        text += ["", f"{heading}:", *_aligned(rows, max(map(len, shown)))]
    return "\n".join(text)


def _aligned(rows: dict[str, str], width: int) -> list[str]:
    return [f"  {name:<{width}}  {text}" for name, text in rows.items()]
