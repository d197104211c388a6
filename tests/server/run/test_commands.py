"""The commands of a server, as somebody types them: from `skerry up` to `skerry down`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skerry.server.run import instance
from skerry.server.settings import outward


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


def test_the_administrators_link_is_for_a_terminal(own_home: Path) -> None:
    """A pipe may end in a journal or a log that others read; there nothing that signs in is even made."""
    skerry = Commands(own_home)
    master, slave = os.openpty()
    command = [sys.executable, "-m", "skerry", "up", "--port", "0"]
    process = subprocess.Popen(command, stdout=slave, stderr=subprocess.DEVNULL, env=skerry.env)
    os.close(slave)
    try:
        shown = b""
        while b"export SKERRY_URL" not in shown:
            shown += os.read(master, 4096)
        assert b"/sign-in#" in shown
    finally:
        process.terminate()
        process.wait(60)
        os.close(master)
    for link, wanted in ((["--link"], True), ([], False)):
        told = skerry.json("up", "-dp", "0", *link)
        try:
            assert (told["link"] is not None) is wanted
            with sqlite3.connect(own_home / "server" / "skerry.db") as database:
                (count,) = database.execute("SELECT count(*) FROM sign_in_links").fetchone()
            database.close()
            assert count == 2  # of the terminal, and of --link
        finally:
            skerry("down")


def test_a_server_is_started_used_and_ended_by_its_commands(own_home: Path) -> None:
    skerry = Commands(own_home)
    assert (
        "no server runs here"
        in subprocess.run(
            [sys.executable, "-m", "skerry", "status"], capture_output=True, text=True, env=skerry.env, check=False
        ).stdout
    )
    told = skerry("up", "-dp", "0")
    try:
        url = re.search(r"serves at (\S+)", told)[1]  # type: ignore[index]
        assert "/sign-in#" not in told  # which may be a file that others read: it says how to get one
        assert "skerry user link admin\n" in told and f"{url}/sign-in#" in skerry("user", "link", "admin")
        line = next(line for line in told.splitlines() if line.startswith("  curl"))
        for _ in range(2):  # the same line again means the same sandbox
            ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True)
            assert '"stdout":"hello from ' in ran.stdout, ran.stdout
        assert skerry.json("status")["health"] == "ok"
        assert "already runs" in skerry("up", "--port", "0", code=1)

        # As root of this machine, without a login.
        assert skerry.json("whoami")["admin"] is True
        assert "/sign-in#" in skerry("user", "create", "mira")
        skerry("user", "password", "mira", stdin=" correct horse battery \n")
        project = skerry("project", "create", "demo").strip()
        skerry("project", "share", "demo", "mira", "--role", "write")
        assert "mira" in skerry("project", "members", project)

        # As somebody elsewhere.
        assert "is wrong" in skerry("login", url, "--user", "mira", stdin="wrong\n", code=1)
        assert "logged in" in skerry("login", "--user", "mira", stdin=" correct horse battery \n")
        assert skerry.json("whoami")["user"] == "mira"  # not who may on this machine without a login
        skerry("login", url, "--user", "mira", stdin=" correct horse battery \n")
        assert (own_home / "login.json").stat().st_mode & 0o077 == 0
        who = skerry.json("whoami")
        assert (who["user"], who["admin"]) == ("mira", False)
        assert {item["name"] for item in who["projects"]} == {"mira", "demo"}
        assert "PERMISSION_DENIED" in skerry("user", "ls", code=1)
        assert skerry("run", "--", "echo", "over there") == "over there\n"
        assert "hello" not in skerry("ps")  # which is the administrator's
        skerry.env["SKERRY_PROJECT"] = project
        shared = skerry("create").strip()
        del skerry.env["SKERRY_PROJECT"]
        own = skerry("create").strip()
        assert "1 sandbox of the project pj-" in skerry("rm", "--all", code=2)
        assert skerry("rm", "--all", "--yes").split() == [own]  # not what is in a project shared with others
        assert shared in skerry("ps")
        skerry("rm", shared)
        key = skerry("key", "create", "--scope", "read", "--project", "demo", "--days", "1").strip()
        skerry("login", url, "--key", stdin=f"{key}\n")
        assert skerry.json("whoami")["scopes"] == ["read"]
        skerry("logout")
        copy = Path(skerry("backup").strip())
        assert copy.parent == own_home / "server" / "backups" and copy.exists()
    finally:
        ended = skerry("down")
    assert "has ended" in ended and instance.running_server(own_home / "server") is None
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
    (directory / "log").write_text("error: of yesterday\n")
    assert skerry("up", "--detach", "--port", "0", code=1) == told
    assert json.loads(skerry("up", "--detach", "-o", "json", code=1))["error"]["code"] == "CORRUPTED"


def test_what_a_server_with_a_certificate_of_its_own_prints_works(own_home: Path) -> None:
    skerry = Commands(own_home)
    done = subprocess.run(
        [
            "bash",
            "-c",
            'ulimit -Sn 300; exec "$@"',
            "-",
            sys.executable,
            "-m",
            "skerry",
            "up",
            "-d",
            "-p",
            "0",
            "--tls",
        ],
        capture_output=True,
        text=True,
        env=skerry.env,
        timeout=90,
        check=True,
    )
    try:
        line = next(line for line in done.stdout.splitlines() if line.startswith("  export"))
        who = subprocess.run(
            ["bash", "-c", f"{line} && {sys.executable} -m skerry whoami"],
            capture_output=True,
            text=True,
            env=skerry.env,
            check=False,
        )
        assert who.stdout.startswith("admin (administrator) at https://"), who.stderr
        status = skerry.json("status")
        assert status["health"] == "ok"
        limit = re.search(r"Max open files +(\d+)", Path(f"/proc/{status['pid']}/limits").read_text())
        assert limit is not None and int(limit[1]) > 300
    finally:
        skerry("down")


def test_a_server_on_every_address_prints_one_that_others_can_use(own_home: Path) -> None:
    """With the certificate for it, and a link that makes a login on the machine that uses it."""
    skerry = Commands(own_home)
    told = skerry("up", "-dp", "0", "--host", "0.0.0.0", "--tls", "--link")
    try:
        (address,) = set(re.findall(r"https://([^:/]+):", told))
        assert address == outward("0.0.0.0") and address != "0.0.0.0"
        line = next(line for line in told.splitlines() if line.startswith("  curl"))
        ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
        assert '"stdout":"hello from ' in ran.stdout, ran.stderr
        link = re.search(r"https://\S+/sign-in#\S+", told)
        assert link is not None
        ca_file = str(own_home / "server" / "tls" / "ca.pem")
        elsewhere = Commands(own_home / "elsewhere")  # without the key of the administrator
        assert "logged in" in elsewhere("login", "--link", link[0], "--ca-file", ca_file)
        assert elsewhere.json("whoami")["user"] == "admin"
        assert "hello" in elsewhere("ps")
        assert "a link works once" in elsewhere("login", "--link", link[0], "--ca-file", ca_file, code=1)
        assert "not a sign-in link" in elsewhere("login", "--link", f"https://{address}", code=1)
        assert elsewhere("login", "--link", link[0], "--user", "mira", code=2)
    finally:
        skerry("down")


def test_certificates_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    skerry = Commands(tmp_path / "home")
    (tmp_path / "none.pem").write_text("nothing")
    for file in ("/no/such", str(tmp_path / "none.pem")):
        said = skerry("up", "--port", "0", "--tls-cert", file, "--tls-key", file, code=1)
        assert f"tls_cert {file}" in said and "(INVALID_ARGUMENT)" in said


@contextmanager
def holding(home: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock of the home's server, and says no address."""
    program = f"""
import sys, time
from pathlib import Path
from skerry.server.run import instance
while True:
    try:
        with instance.claimed(Path({str(home / "server")!r})):
            print("has it", flush=True)
            time.sleep(60)
    except instance.Conflict:
        time.sleep(0.01)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_server_that_still_starts_can_be_seen_and_ended(tmp_path: Path) -> None:
    skerry = Commands(tmp_path / "home")
    with holding(skerry.home) as process:
        assert process.stdout is not None and process.stdout.readline() == "has it\n"
        (skerry.home / "server.toml").write_text("a server must be found though this is none")
        done = subprocess.run(
            [sys.executable, "-m", "skerry", "status", "-o", "json"],
            capture_output=True,
            text=True,
            env=skerry.env,
            check=False,
        )
        assert (done.returncode, json.loads(done.stdout)["health"]) == (1, "starting"), done.stderr
        assert f"(process {process.pid})" in skerry("up", "--detach", "--port", "0", code=1)
        assert skerry.json("down") == {"pid": process.pid, "killed": False}
        assert process.wait(10) == -signal.SIGTERM
    assert skerry.json("down") == {"pid": None, "killed": False}


def test_down_ends_the_server_it_found_and_no_later_one(tmp_path: Path) -> None:
    skerry = Commands(tmp_path / "home")
    with holding(skerry.home) as first:
        assert first.stdout is not None and first.stdout.readline() == "has it\n"
        with holding(skerry.home) as second:
            assert skerry.json("down", "--timeout", "3") == {"pid": first.pid, "killed": False}
            assert second.stdout is not None and second.stdout.readline() == "has it\n"
            assert second.poll() is None


def test_who_may_not_read_the_home_is_told_so(tmp_path: Path) -> None:
    skerry = Commands(tmp_path / "home")
    (skerry.home / "server").mkdir(mode=0o000)
    (skerry.home / "server" / "lock").touch()
    plain = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    for command, code in (("whoami", "UNAUTHENTICATED"), ("status", "PERMISSION_DENIED"), ("up", "PERMISSION_DENIED")):
        done = subprocess.run(
            [*plain, sys.executable, "-m", "skerry", command],
            capture_output=True,
            text=True,
            env=skerry.env,
            check=False,
        )
        assert (done.returncode, f"({code})" in done.stderr) == (1, True), done.stderr


def test_a_login_that_cannot_be_is_told_as_what_it_is(tmp_path: Path) -> None:
    skerry = Commands(tmp_path / "home")
    for url, code in (("http://127.0.0.1:1", "CONNECTION_LOST"), ("127.0.0.1:7411", "INVALID_ARGUMENT")):
        assert f"({code})" in skerry("login", url, "--user", "mira", stdin="x\n", code=1)
        assert f"({code})" in skerry("login", url, "--key", stdin="x\n", code=1)
    said = skerry("login", "https://127.0.0.1:1", "--key", "--ca-file", "/no/such", stdin="x\n", code=1)
    assert "(FILE_NOT_FOUND)" in said
    assert not (skerry.home / "login.json").exists()


def test_a_command_that_waits_for_a_server_ends_with_ctrl_c(tmp_path: Path) -> None:
    skerry = Commands(tmp_path / "home")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = skerry.env | {"SKERRY_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "SKERRY_API_KEY": "sk_1_x"}
        process = subprocess.Popen(
            [sys.executable, "-m", "skerry", "whoami"], env=env, stderr=subprocess.PIPE, text=True
        )
        connection, _ = silent.accept()
        with connection:
            connection.recv(1000)
            process.send_signal(signal.SIGINT)
            try:
                _, said = process.communicate(timeout=10)
            finally:
                process.kill()
        assert (process.returncode, said) == (130, "")


def test_a_backup_that_cannot_be_is_told_as_what_it_is(tmp_path: Path) -> None:
    skerry = Commands(tmp_path / "home")
    assert "(FILE_NOT_FOUND)" in skerry("backup", code=1)
    from tests.server.store.test_damage import some_store

    (skerry.home / "server").mkdir(mode=0o700)
    some_store(skerry.home / "server", users=1)
    assert "(IS_A_DIRECTORY)" in skerry("backup", str(tmp_path), code=1)
    assert f"no directory {tmp_path}/none" in skerry("backup", str(tmp_path / "none" / "b.db"), code=1)
    assert not (tmp_path / "none").exists()
