"""`skerry up --install`: a unit that systemd takes, whose command serves and leaves sandboxes alone when it ends."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from skerry.cli.service import unit
from skerry.server.run import instance
from tests.server.run.test_commands import Commands

WORKS = {"PrivateTmp", "NoNewPrivileges", "ProtectKernelModules"}
BREAKS = {"ProtectControlGroups", "ProtectKernelTunables", "ProtectSystem"}


def in_own_etc(skerry: Commands, units: Path, *words: str) -> str:
    """`skerry WORDS` with `units` for /etc/systemd/system, where no systemd seems to run."""
    hide = "mkdir -p /run/systemd /etc/systemd/system; mount -t tmpfs none /run/systemd"
    place = f'{hide}; mount --bind "{units}" /etc/systemd/system; exec "$@"'
    command = ["unshare", "--mount", "sh", "-euc", place, "sh", sys.executable, "-m", "skerry", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=skerry.env, timeout=90, check=True)
    return done.stdout + done.stderr


def test_the_installed_unit_serves_and_its_sandboxes_outlive_it(own_home: Path, tmp_path: Path) -> None:
    skerry = Commands(own_home)
    skerry.env["SKERRY_API_KEY"] = "not for everybody to read"
    units = tmp_path / "units"
    units.mkdir()
    assert "systemctl enable --now skerry.service" in in_own_etc(skerry, units, "up", "--install", "--port", "0")
    file = units / "skerry.service"
    text = file.read_text()
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert all(settings[name] == "yes" for name in WORKS) and not BREAKS & settings.keys()
    assert (settings["KillMode"], settings["Delegate"]) == ("process", "yes")
    assert "not for everybody" not in text and f"Environment=SKERRY_HOME={own_home}" in text
    if shutil.which("systemd-analyze"):
        verified = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, timeout=60)
        assert str(file.name) not in verified.stderr, verified.stderr

    # As systemd does it, without systemd: the environment of the unit and nothing else, the check, the command, SIGTERM.
    given = dict(line.split("=", 1) for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE))
    env = {"PATH": os.environ["PATH"], **{name: shlex.split(value)[0] for name, value in given.items()}}
    subprocess.run(shlex.split(settings["ExecStartPre"].removeprefix("+")), env=env, check=True, timeout=60)
    server = subprocess.Popen(shlex.split(settings["ExecStart"]), env=env, stdout=subprocess.DEVNULL)
    try:
        while (found := instance.running_server(own_home / "server")) is None or not found.url:
            assert server.poll() is None
            time.sleep(0.05)
        assert found.pid == server.pid
        assert skerry("create", "--name", "served").strip()
        assert skerry("exec", "served", "--", "sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo $! > pid") == ""
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0  # Restart=on-failure would start it again otherwise
    assert skerry("exec", "served", "--", "sh", "-c", "kill -0 $(cat pid) && echo alive") == "alive\n"
    skerry("rm", "served")

    assert "is removed" in in_own_etc(skerry, units, "up", "--uninstall") and not file.exists()
    assert "not installed" in in_own_etc(skerry, units, "up", "--uninstall")


def test_a_unit_says_what_is_odd_as_systemd_reads_it() -> None:
    told = unit(["--public-url=http://x/%2f$HOME"], {"SKERRY_CPU": "a b"})
    assert "--public-url=http://x/%%2f$$HOME" in told and 'Environment="SKERRY_CPU=a b"' in told
