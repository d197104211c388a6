"""A client that snapshots, restores, copies and deletes until it is killed.

python keeper.py MODE ID SNAPSHOT      MODE: create, restore, clone, fork, delete
"""

from __future__ import annotations

import sys

from skerry import Sandbox


def main() -> None:
    mode, sandbox_id, snapshot = sys.argv[1:]
    sandbox = Sandbox.get(sandbox_id)
    sandbox.exec("true")  # connected: what follows is what is killed
    print("go", flush=True)
    for _ in range(100):
        if mode == "create":
            sandbox.snapshots.create()
        elif mode == "restore":
            sandbox.snapshots.restore(snapshot)
        elif mode == "clone":
            sandbox.clone(labels={"copy": "yes"})
        elif mode == "fork":
            sandbox.fork(3, labels={"copy": "yes"})
        else:
            made = sandbox.snapshots.create()
            copy = Sandbox.create(snapshot=made, labels={"copy": "yes"}, timeout=600)
            sandbox.snapshots.delete(made)
            copy.destroy()


main()
