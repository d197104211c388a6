"""The commands of a server, as somebody types them: from `skerry up` to `skerry down`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from skerry.server import instance


class Commands:
    """`skerry` with a home and a login file of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        hidden = ("SKERRY_URL", "SKERRY_API_KEY")
        self.env = {name: value for name, value in os.environ.items() if name not in hidden}
        self.env |= {"SKERRY_HOME": str(home), "SKERRY_LOGIN": str(home / "login.json"), "SKERRY_POOL_SIZE": "600MB"}

    def __call__(self, *words: str, stdin: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "skerry", *words],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.env,
            timeout=90,
            check=False,
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def json(self, *words: str, stdin: str = "") -> Any:
        return json.loads(self(*words, "-o", "json", stdin=stdin))


def test_a_server_is_started_used_and_ended_by_its_commands(own_home: Path) -> None:
    skerry = Commands(own_home)
    assert (
        "no server runs here"
        in subprocess.run(
            [sys.executable, "-m", "skerry", "status"], capture_output=True, text=True, env=skerry.env, check=False
        ).stdout
    )
    told = skerry("up", "--detach", "--port", "0")
    try:
        url = re.search(r"serves at (\S+)", told)[1]  # type: ignore[index]
        assert f"{url}/sign-in#" in told
        line = next(line for line in told.splitlines() if line.startswith("  curl"))
        for _ in range(2):  # the same line again means the same sandbox
            ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True)
            assert '"stdout":"hello from ' in ran.stdout, ran.stdout
        assert skerry.json("status")["health"] == "ok"
        assert "runs already" in skerry("up", "--port", "0", code=1)

        # As root of this machine, without a login.
        assert skerry.json("whoami")["admin"] is True
        assert "/sign-in#" in skerry("user", "create", "mira")
        skerry("user", "password", "mira", stdin="correct horse battery\n")
        project = skerry("project", "create", "demo").strip()
        skerry("project", "share", "demo", "mira", "--role", "write")
        assert "mira" in skerry("project", "members", project)

        # As somebody elsewhere.
        assert "not right" in skerry("login", url, "--user", "mira", stdin="wrong\n", code=1)
        skerry("login", url, "--user", "mira", stdin="correct horse battery\n")
        assert (own_home / "login.json").stat().st_mode & 0o077 == 0
        who = skerry.json("whoami")
        assert (who["user"], who["admin"]) == ("mira", False)
        assert {item["name"] for item in who["projects"]} == {"mira", "demo"}
        assert "PERMISSION_DENIED" in skerry("user", "ls", code=1)
        key = skerry("key", "create", "--scope", "read", "--project", "demo", "--days", "1").strip()
        skerry("login", url, "--key", stdin=f"{key}\n")
        assert skerry.json("whoami")["scopes"] == ["read"]
        skerry("logout")
        copy = Path(skerry("backup").strip())
        assert copy.parent == own_home / "server" / "backups" and copy.exists()
    finally:
        ended = skerry("down")
    assert "has ended" in ended and instance.running(own_home / "server") is None
    assert "hello" in skerry("ps")  # the sandbox goes on


def test_settings_are_shown_with_their_origin(tmp_path: Path) -> None:
    skerry = Commands(tmp_path / "home")
    (skerry.home / "server.toml").write_text("rate = 7\n")
    skerry.env["SKERRY_SERVER_PORT"] = "8080"
    shown = skerry.json("config", "show")
    assert shown["rate"] == {"value": 7.0, "from": str(skerry.home / "server.toml")}
    assert shown["port"] == {"value": 8080, "from": "environment"}
    assert shown["host"]["from"] == "built in"
    skerry.env["SKERRY_SERVER_PROT"] = "1"
    assert "did you mean 'port'" in skerry("config", "show", code=1)


def test_a_damaged_database_is_told_by_the_command(tmp_path: Path) -> None:
    skerry = Commands(tmp_path / "home")
    directory = skerry.home / "server"
    (directory / "backups").mkdir(parents=True)
    (directory / "backups" / "skerry-20260101T000000Z.db").write_bytes(b"")
    (directory / "skerry.db").write_bytes(b"no database" * 1000)
    told = skerry("up", "--port", "0", code=1)
    assert "CORRUPTED" in told and "skerry-20260101T000000Z.db" in told
