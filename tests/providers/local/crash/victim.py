"""A client that works until it is killed. It says on stdout what it is about to do and what has returned.

python victim.py MODE NAME      MODE: create, lease, exec, transfer, destroy, open
"""

from __future__ import annotations

import sys
import tempfile

from skerry import Sandbox


def say(*words: str) -> None:
    print(*words, flush=True)


def make(name: str, network: str = "none") -> Sandbox:
    say("creating", name)
    sandbox = Sandbox.create(name=name, timeout=600, network=network)  # type: ignore[arg-type]
    say("created", name)
    return sandbox


def create(prefix: str) -> None:
    for number in range(100):
        make(f"{prefix}-{number}")


def opened(prefix: str) -> None:
    for number in range(100):
        make(f"{prefix}-{number}", "open")


def lease(prefix: str) -> None:
    for number in range(100):
        name = f"{prefix}-{number}"
        sandbox = make(name)
        say("entering", name)
        with sandbox:
            say("entered", name)
            sandbox.exec("sleep 300 & sleep 0.02")
            say("leaving", name)
        say("destroyed", name)


def hold(prefix: str) -> None:
    with make(prefix) as sandbox:
        say("entered", prefix)
        sandbox.exec("sleep 300")


def run(prefix: str) -> None:
    sandbox = make(prefix)
    say("go")
    while True:
        sandbox.exec("sleep 300 & setsid sleep 300 & head -c 1000000 /dev/zero; sleep 0.03", timeout=30)


def transfer(prefix: str) -> None:
    sandbox = make(prefix)
    with tempfile.NamedTemporaryFile() as local:
        local.write(b"x" * (8 << 20))
        local.flush()
        sandbox.files.upload(local.name, "/workspace/data")
        say("go")
        while True:
            sandbox.files.upload(local.name, "/workspace/data")
            sandbox.files.download("/workspace/data", local.name)


def destroy(prefix: str) -> None:
    made = [make(f"{prefix}-{number}") for number in range(4)]
    say("go")
    for number, sandbox in enumerate(made):
        say("destroying", f"{prefix}-{number}")
        sandbox.destroy()
        say("destroyed", f"{prefix}-{number}")


if __name__ == "__main__":
    modes = {
        "create": create,
        "lease": lease,
        "exec": run,
        "transfer": transfer,
        "destroy": destroy,
        "open": opened,
        "hold": hold,
    }
    modes[sys.argv[1]](sys.argv[2])
