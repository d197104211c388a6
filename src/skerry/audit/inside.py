"""The attack program: it runs in the sandbox, needs only Python's standard library, and reports what came back.

It reads `{"attempts": [{"name", "body", "seconds"}, …], "given": {…}}` from its input and writes a line of JSON before
each attempt (its name) and one after it (`[how, what]`, see `attempt.How`). Each attempt runs in its own process,
so that neither its rights nor its death change the next one. What stands below is what the bodies of attempts may use.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

CALLS = {
    "x86_64": (
        "mount=165 umount2=166 ptrace=101 keyctl=250 add_key=248 bpf=321 unshare=272 setns=308 clone=56 clone3=435 "
        "perf_event_open=298 io_uring_setup=425 userfaultfd=323 init_module=175 kexec_load=246 reboot=169 swapon=167 "
        "settimeofday=164 sethostname=170 open_by_handle_at=304 syslog=103 pivot_root=155 fsopen=430 open_tree=428 "
        "mount_setattr=442 iopl=172 acct=163 quotactl=179 process_vm_readv=310 pidfd_getfd=438 pidfd_open=434 "
        "move_mount=429 clock_settime=227 io_setup=206 socketpair=53 ioctl=16"
    ),
    "aarch64": (
        "mount=40 umount2=39 ptrace=117 keyctl=219 add_key=217 bpf=280 unshare=97 setns=268 clone=220 clone3=435 "
        "perf_event_open=241 io_uring_setup=425 userfaultfd=282 init_module=105 kexec_load=104 reboot=142 swapon=224 "
        "settimeofday=170 sethostname=161 open_by_handle_at=265 syslog=116 pivot_root=41 fsopen=430 open_tree=428 "
        "mount_setattr=442 acct=89 quotactl=60 process_vm_readv=270 pidfd_getfd=438 pidfd_open=434 move_mount=429 "
        "clock_settime=112 io_setup=0 socketpair=199 ioctl=29 iopl=-1"
    ),
}
"""The numbers of system calls, by architecture; -1: it has no such call."""

given: dict[str, Any] = {}
"""What the other side planted and set up."""
descriptors = len(os.listdir("/proc/self/fd")) - 1
"""How many this program was given."""
parent = os.getppid()
"""The agent's supervisor of this program."""
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class NotTried(Exception):
    """The attempt cannot be made here, and why."""


class NoEffect(Exception):
    """The call returned, and what the attacker wanted did not happen."""


def syscall(name: str, *arguments: Any) -> int:
    numbers = dict(each.split("=") for each in CALLS.get(platform.machine(), "").split())
    if name not in numbers:
        raise NotTried(f"{platform.machine()} has no system call {name} that is known here")
    plain = (ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)
    result: int = libc.syscall(ctypes.c_long(int(numbers[name])), *plain)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def buffer(size: int) -> Any:
    return ctypes.create_string_buffer(size)


def read(path: str, size: int = 16) -> bytes:
    with open(path, "rb") as file:
        data = file.read(size)
    if not data:
        raise OSError(errno.ENODATA, "empty")
    return data


def opened(path: str) -> str:
    """Open a device or a file whose reader takes something away; nothing is read."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if os.fstat(fd).st_rdev == os.stat("/dev/null").st_rdev:
        raise OSError(errno.ENODATA, "/dev/null in its place")
    return "opened"


def listed(path: str) -> list[str]:
    names = os.listdir(path)
    if not names:
        raise OSError(errno.ENODATA, "empty")
    return names


def rewrite(path: str, data: bytes = b"") -> int:
    """Write to a file of the kernel what it says already, which changes nothing; or `data`."""
    with contextlib.suppress(OSError):
        data = data or read(path, 4096)
    return os.write(os.open(path, os.O_WRONLY), data or b"\n")


def first_that_works(attempts: Iterable[Callable[[], Any]]) -> Any:
    """Otherwise the error of the first."""
    errors = []
    for attempt in attempts:
        try:
            return attempt() or True
        except OSError as error:
            errors.append(error)
    raise errors[0] if errors else NotTried("there is nothing to try it on")


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def said_by_processes(text: str) -> str:
    """Where `text` stands in the command line or the environment of a process. Raises OSError if it does not."""
    for pid in processes():
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
                if text.encode() in file.read():
                    return f"/proc/{pid}/{name}"
    raise OSError(errno.ESRCH, "none says it")


def unix(address: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
    return "connected"


def connect(host: str, port: int) -> str:
    socket.create_connection((host, port), 3).close()
    return f"connected to {host}"


def reach(targets: Iterable[tuple[str, int]]) -> list[str]:
    """Those that a packet gets to, even if they refuse the connection; all are tried at the same time.

    Raises TimeoutError if one of the others gave no answer, OSError if all were refused on the way.
    """
    reached, waiting, first = [], {}, 0
    for host, port in targets:
        client = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        client.setblocking(False)
        code = client.connect_ex((host, port))
        if code in (0, errno.EINPROGRESS):
            waiting[client] = host
        else:
            first = first or code
    end = time.monotonic() + 3
    while waiting and time.monotonic() < end:
        _, ready, _ = select.select([], list(waiting), [], max(0.0, end - time.monotonic()))
        for client in ready:
            code = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            host = waiting.pop(client)
            if code in (0, errno.ECONNREFUSED):
                reached.append(host)
            else:
                first = first or code
    if reached:
        return reached
    if waiting:
        raise TimeoutError(f"no answer from {', '.join(waiting.values())}")
    if not first:
        raise NotTried("there is no address to try")
    raise OSError(first, os.strerror(first))


def attempt_in_child(body: str) -> tuple[str, str]:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # where memory runs out, this process is to die and not the one that reports it
    lines = "".join(f"\n    {line}" for line in body.strip("\n").splitlines())
    names = dict(globals())
    try:
        exec(f"def attack():{lines}", names)  # noqa: S102 - the bodies are this program's work
        return "returned", repr(names["attack"]())[:200]
    except NotTried as reason:
        return "not tried", str(reason)
    except NoEffect as reason:
        return "no effect", str(reason)
    except TimeoutError as error:
        return "silent", "no answer" if error.errno is None else str(errno.errorcode[error.errno])
    except OSError as error:
        return "error", errno.errorcode.get(error.errno or 0, str(error))
    except MemoryError:
        return "error", "ENOMEM"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return "broken", f"{type(error).__name__}: {error}"


def attempt(body: str, seconds: float) -> tuple[str, str]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(reading)
        os.write(writing, json.dumps(attempt_in_child(body)).encode() + b"\n")
        os._exit(0)
    os.close(writing)
    said, end = b"", time.monotonic() + seconds
    while not said.endswith(b"\n") and select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(reading, 65536)
        if not part:
            break
        said += part
    os.close(reading)
    ended, status = 0, 0
    while not said and not ended and time.monotonic() < end:  # it has died, and the kernel will say of what
        ended, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)  # it, and what it has started
    if not ended:
        os.waitpid(pid, 0)
    if said:
        how, what = json.loads(said)
        return how, what
    if not ended:
        return "stuck", f"it did not end within {seconds:g} s"
    return (
        ("killed", signal.Signals(os.WTERMSIG(status)).name) if os.WIFSIGNALED(status) else ("broken", "it fell silent")
    )


def tell(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> NoReturn:
    work = json.load(sys.stdin)
    given.update(work["given"])
    for each in work["attempts"]:
        tell(each["name"])
        tell(attempt(each["body"], each["seconds"]))
    sys.exit(0)


if __name__ == "__main__":
    main()
