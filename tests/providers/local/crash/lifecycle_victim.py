"""A client that changes a sandbox once and says when it begins and that it is done; killed at any moment of it.

python lifecycle_victim.py OPERATION NAME NUMBER      NAME: a sandbox in a state that allows it
"""

from __future__ import annotations

import sys

from skerry import Sandbox

operation, name, number = sys.argv[1], sys.argv[2], sys.argv[3]
sandbox = Sandbox.find(name)
changes = {
    "stop": lambda: sandbox.stop(timeout=0.05),
    "start": sandbox.start,
    "restart": lambda: sandbox.restart(
        env={"ROUND": number}, resources={"pids": 100 + int(number) % 100}, timeout=0.05
    ),
    "pause": sandbox.pause,
    "resume": sandbox.resume,
    "reset": sandbox.reset,
    "hard": lambda: sandbox.reset(hard=True),
    "recover": sandbox.recover,
}
print("go", flush=True)
changes[operation]()
print("done", flush=True)
sys.stdin.read()
