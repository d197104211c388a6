"""A client that exports, imports or archives until it is killed. It says on stdout what it is about to do.

python state_victim.py MODE SANDBOX FILE     MODE: export, import, archive
"""

from __future__ import annotations

import sys
import warnings

from skerry import Sandbox


def say(*words: str) -> None:
    print(*words, flush=True)


def export(sandbox: str, file: str) -> None:
    box = Sandbox.find(sandbox)
    say("go")
    while True:
        box.export_state(file)


def import_(sandbox: str, file: str) -> None:
    say("go")
    while True:
        made = Sandbox.create(import_state=file, name=f"{sandbox}-copy", timeout=600)
        made.destroy()


def archive(sandbox: str, file: str) -> None:
    box = Sandbox.find(sandbox)
    say("go")
    while True:
        box.archive()
        box.start()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"export": export, "import": import_, "archive": archive}[sys.argv[1]](*sys.argv[2:])
