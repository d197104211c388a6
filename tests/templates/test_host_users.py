"""Users can be made in the template `host` with the tools that this machine has for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from skerry import Sandbox


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox.create(template="host", timeout=600) as sandbox:
        yield sandbox


@pytest.mark.skipif(shutil.which("adduser") is None, reason="this machine has no adduser: apt install adduser")
def test_adduser_makes_a_user_who_runs_commands(box: Sandbox) -> None:
    made = box.exec(["adduser", "--comment", "a b", "--disabled-password", "ada"], user="root", timeout=60)
    assert (made.exit_code, made.stderr) == (0, "")
    ran = box.exec('whoami; echo "$HOME"; touch "$HOME/mine"; id -Gn', user="ada", check=True)
    assert ran.stdout.splitlines()[:2] == ["ada", "/home/ada"]
    assert "ada" in ran.stdout.splitlines()[2].split()
    assert box.exec(["deluser", "--quiet", "ada"], user="root").exit_code == 0


@pytest.mark.skipif(shutil.which("useradd") is None, reason="this machine has no useradd: apt install passwd")
def test_useradd_and_passwords_work(box: Sandbox) -> None:
    script = "useradd -m -s /bin/sh bob && groupadd team && usermod -aG team bob && echo bob:secret | chpasswd"
    made = box.exec(f"{script} && echo user:other | chpasswd", user="root", timeout=60)
    assert (made.exit_code, made.stderr) == (0, "")
    assert box.exec(["su", "bob", "-c", "id -Gn"], user="root").stdout.split() == ["bob", "team"]
    assert box.exec(["id", "-un"], user="bob").stdout == "bob\n"
    assert box.exec(["userdel", "bob"], user="root").exit_code == 0
