"""The server as a systemd service: its unit, and how it comes and goes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from skerry.core import ProviderUnavailable, home, replace_file
from skerry.server import Settings, running_server, server_taken

NAME = "skerry.service"
UNIT = Path("/etc/systemd/system") / NAME
PATIENCE = 60.0
_PERSONAL = {"URL", "API_KEY", "PROJECT", "CA_FILE", "LOGIN", "PROGRESS", "DEBUG"}
"""Variables, without SKERRY_, of the person who installs the service, not of the machine."""

# What is not here does not work: ProtectControlGroups, ProtectKernelTunables and ProtectSystem=strict refuse what a
# sandbox needs. The pool is mounted before, with "+": a mount made inside PrivateTmp would be for the service alone.
_UNIT = """\
[Unit]
Description=Skerry: sandboxes of this machine over HTTP
Wants=network-online.target
After=network-online.target local-fs.target
RequiresMountsFor={home}

[Service]
Type=exec
ExecStartPre=+{check}
ExecStart={start}
{environment}
# A stop or a restart ends the server alone, and sandboxes keep running.
KillMode=process
Delegate=yes
Restart=on-failure
RestartSec=2
TimeoutStopSec=60
PrivateTmp=yes
NoNewPrivileges=yes
ProtectKernelModules=yes

[Install]
WantedBy=multi-user.target
"""


def unit(options: Sequence[str], environ: Mapping[str, str]) -> str:
    """The unit of a server with these options of `skerry up`, and with the settings of this environment."""
    skerry = [sys.executable, "-m", "skerry"]
    kept = {
        name: value
        for name, value in environ.items()
        if name.startswith("SKERRY_") and name.removeprefix("SKERRY_") not in _PERSONAL
    } | {"SKERRY_HOME": str(home())}
    return _UNIT.format(
        home=_quoted(str(home())),
        check=_command([*skerry, "storage", "show"]),
        start=_command([*skerry, "up", "--no-link", *options]),
        environment="\n".join(f"Environment={_quoted(f'{name}={value}')}" for name, value in sorted(kept.items())),
    )


def _command(words: Sequence[str]) -> str:
    return " ".join(_quoted(word).replace("$", "$$") for word in words)


def _quoted(word: str) -> str:
    """One word for systemd, which reads C escapes in quotes, and `%` everywhere."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'"{escaped}"' if not escaped or set(escaped) & set(" \t'\"\\;#") else escaped


def install(options: Sequence[str]) -> str | None:
    """Write the unit, and start it where systemd runs; returns the server's address, None where systemd does not run.

    Raises Conflict while a server runs that is not the service, ProviderUnavailable.
    """
    if not UNIT.parent.is_dir():
        raise ProviderUnavailable(
            f"there is no directory {UNIT.parent}", hint="use --detach on a system without systemd"
        )
    directory, booted = Settings().directory, _booted()
    other = running_server(directory)
    if other is not None and not (booted and _systemctl("is-active", "--quiet", NAME, check=False)):
        raise server_taken(other)
    try:
        replace_file(UNIT, unit(options, os.environ).encode(), flush=True, several=True)
        UNIT.chmod(0o644)
    except PermissionError as error:
        raise ProviderUnavailable(f"cannot write {UNIT}: {error.strerror}", hint="use sudo") from error
    if not booted:
        return None
    _systemctl("daemon-reload")
    _systemctl("enable", "--quiet", NAME)
    _systemctl("restart", NAME)
    until = time.monotonic() + PATIENCE
    while (found := running_server(directory)) is None or not found.url:
        if time.monotonic() > until or _systemctl("is-failed", "--quiet", NAME, check=False):
            raise ProviderUnavailable("the service did not start", hint=f"`journalctl -u {NAME}` says why")
        time.sleep(0.1)
    return found.url


def uninstall() -> bool:
    """Stop the service and remove its unit; sandboxes keep running. Returns whether there was one."""
    if not UNIT.exists():
        return False
    if _booted():
        _systemctl("disable", "--quiet", "--now", NAME)
    try:
        UNIT.unlink()
    except PermissionError as error:
        raise ProviderUnavailable(f"cannot remove {UNIT}: {error.strerror}", hint="use sudo") from error
    if _booted():
        _systemctl("daemon-reload")
    return True


def _booted() -> bool:
    """Whether systemd runs this machine, as sd_booted(3) looks."""
    return Path("/run/systemd/system").is_dir()


def _systemctl(*words: str, check: bool = True) -> bool:
    done = subprocess.run(["systemctl", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if check and done.returncode != 0:
        raise ProviderUnavailable(f"`systemctl {' '.join(words)}` failed: {done.stderr.strip()[-300:]}")
    return done.returncode == 0
