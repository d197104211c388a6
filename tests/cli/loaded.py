"""The program, loaded once: each call is a fork of it, a process of its own that begins half a second further on.

`python loaded.py FD` takes calls from the socket FD: the arguments, the variables and the directory as JSON, and with
them stdin, stdout, stderr and a pipe that gets the pid at once and the exit status at the end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

import skerry.cli.program
import skerry.providers.local
import skerry.sdk.sandbox  # noqa: F401
from skerry.cli.main import main

MOST = 1 << 20


def take_calls(calls: socket.socket) -> bool:
    """True in every process that is to be the program now; False at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who watches over a call needs nobody to wait for it
    while True:
        data, handed, _, _ = socket.recv_fds(calls, MOST, 4)
        if not data:
            return False
        if os.fork() == 0:
            calls.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            become(json.loads(data), handed)
            return True
        for fd in handed:
            os.close(fd)


def become(call: dict[str, Any], handed: list[int]) -> None:
    """Returns in a child that has all that the program has when it begins; its parent tells what became of it."""
    *streams, report = handed
    pid = os.fork()
    if pid:
        for fd in streams:
            os.close(fd)
        os.write(report, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.close(report)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(call["env"])
    os.chdir(call["cwd"])
    sys.argv = ["skerry", *call["arguments"]]


if __name__ == "__main__" and take_calls(socket.socket(fileno=int(sys.argv[1]))):
    main()
