"""A client that starts a process in the background, says where it is, and waits to be killed.

python spawner.py NAME      NAME: a sandbox that exists
"""

from __future__ import annotations

import sys

from skerry import Sandbox

# It counts on after "go" has been made, which is after this client's death.
SCRIPT = "seq 1 5000; until [ -e go ]; do sleep 0.05; done; seq 5001 10000; echo done >&2; exit 7"

process = Sandbox.find(sys.argv[1]).processes.spawn(SCRIPT)
for _ in process:  # attached, and with a part of the output already taken
    print(process.id, flush=True)
    break
sys.stdin.read()
