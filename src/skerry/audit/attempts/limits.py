"""Attempts to take more of the machine than a sandbox's share: each stops by itself a little above it."""

from __future__ import annotations

from skerry.audit.attempt import EXHAUSTED, Attempt, Need

_MEMORY = "Code inside uses up the machine's memory."
_PROCESSES = "Code inside uses up the machine's processes, and nobody can log in any more."

_FORK = """
for number in range(given["pids"] + 16):
    if os.fork() == 0:
        signal.pause()
return f"{given['pids'] + 16} processes"
"""
_THREADS = """
import threading
try:
    for number in range(given["pids"] + 16):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    raise OSError(errno.EAGAIN, "no more threads")
return f"{given['pids'] + 16} threads"
"""
_ALLOCATE = """
taken = []
while len(taken) << 20 < 2 * given["memory"]:
    taken.append(b"x" * (1 << 20))
return f"{len(taken)} MiB"
"""
_SHARED_MEMORY = """
fd = os.memfd_create("share")
for number in range(2 * given["memory"] >> 20):
    os.write(fd, b"x" * (1 << 20))
return "twice its limit"
"""
_DEV_SHM = """
place = f"/dev/shm/{os.getpid()}"
fd = os.open(place, os.O_WRONLY | os.O_CREAT)
os.unlink(place)
for number in range(2 * given["memory"] >> 20):
    os.write(fd, b"x" * (1 << 20))
return "twice its limit"
"""
_OPEN_FILES = """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
fd = os.open("/dev/null", os.O_RDONLY)
for number in range(1 << 17):
    fd = os.dup(fd)
return "131,072 files"
"""
_TERMINALS = """
held = []
for number in range(1000):
    held.append(os.openpty())
return "1,000 terminals"
"""
_WATCHES = """
for number in range(1000):
    if libc.inotify_init() < 0:
        raise OSError(ctypes.get_errno(), "no more")
return "1,000 instances"
"""
_DISK = """
place = f"/tmp/{os.getpid()}"
fd = os.open(place, os.O_WRONLY | os.O_CREAT)
os.unlink(place)
block = os.urandom(1 << 20)
for number in range(2 * given["disk"] >> 20):
    os.write(fd, block)
os.fsync(fd)
return "twice its limit"
"""


def _more(name: str, means: str, body: str, *needs: Need) -> Attempt:
    return Attempt(
        name=name,
        means=means,
        body=body,
        denied=EXHAUSTED,
        needs=frozenset(needs),
        kill="memory" in needs,
        seconds=60,
    )


LIMITS = (
    _more("start more processes than its limit", _PROCESSES, _FORK, "pids"),
    _more("start more threads than its limit", _PROCESSES, _THREADS, "pids"),
    _more("open files without an end", "Code inside uses up the machine's open files.", _OPEN_FILES),
    _more("open terminals without an end", "Code inside uses up the machine's terminals.", _TERMINALS),
    _more("make inotify instances without an end", "Code inside uses up what other users watch files with.", _WATCHES),
    _more("write more than its disk limit", "Code inside fills the machine's disk.", _DISK, "disk"),
    _more("fill /dev/shm", _MEMORY, _DEV_SHM, "memory"),
    _more("fill shared memory", _MEMORY, _SHARED_MEMORY, "memory"),
    _more("take more memory than its limit", _MEMORY, _ALLOCATE, "memory"),
)
