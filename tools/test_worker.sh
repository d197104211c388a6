#!/usr/bin/env bash
# Runs the Python of one worker of pytest-xdist in its own mount and process namespaces, so that a test which counts mounts,
# processes or namespaces counts those of its worker alone. bash is process 1 there and reaps what tests leave behind.
cd "$(dirname "$0")/.."
exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
    bash -c 'mount --make-rshared / && "$@"; exit $?' bash .venv/bin/python "$@"
