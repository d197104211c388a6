"""A client that makes, uses and deletes volumes until it is killed, and says what it is about to do and what has returned.

python volume_victim.py PREFIX
"""

from __future__ import annotations

import hashlib
import os
import sys

from skerry import Sandbox, Volumes


def say(*words: str) -> None:
    print(*words, flush=True)


def play(name: str, *, temporary: bool, keep: bool) -> None:
    volumes, data = Volumes(), os.urandom(200_000)
    say("making", name)
    volumes.create(name, size="50MB", temporary=temporary)
    say("made", name)
    say("mounting", f"{name}-box")
    sandbox = Sandbox.create(name=f"{name}-box", volumes={"/data": name}, timeout=600)
    sandbox.files.write("/data/file", data)
    sandbox.exec("sync", check=True)
    say("written", name, hashlib.sha256(data).hexdigest())
    if temporary:
        say("deleting", name)
    sandbox.destroy()
    say("destroyed", f"{name}-box")
    if keep:
        return
    if not temporary:
        say("deleting", name)
        volumes.delete(name)
    say("deleted", name)


if __name__ == "__main__":
    for number in range(100):
        # every third is kept: what it holds must be there whenever the client dies
        play(f"{sys.argv[1]}-{number}", temporary=number % 3 == 1, keep=number % 3 == 0)
