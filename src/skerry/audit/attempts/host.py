"""Attempts on this machine and on a second sandbox: on files, processes and sockets that were planted there."""

from __future__ import annotations

from skerry.audit.attempt import HIDDEN, REFUSED, Attempt, Need

_FILES = "Code inside reads files of the machine."
_CHANGES = "Code inside changes files of the machine."
_SHARED = "Code inside notices what the machine and other sandboxes do with shared files, or stops them."
_HOST: frozenset[Need] = frozenset({"host"})

_WALK = """
for folder, folders, files in os.walk("/"):
    if folder == "/":
        folders[:] = [name for name in folders if name not in ("proc", "sys", "usr")]
    for name in (*folders, *files):
        if {name} in name:
            return os.path.join(folder, name)
raise OSError(errno.ENOENT, "none")
"""
_KEYS = """
def same(path, size, changed):
    read(path)
    info = os.stat(path)
    if (info.st_size, info.st_mtime_ns) == (size, changed):
        return path
    raise OSError(errno.ENOENT, "another file")
return first_that_works(lambda each=each: same(*each) for each in given["keys"])
"""
_VARIABLE = """
if given["variable"] in str(dict(os.environ)):
    return "it is in this program's environment"
return said_by_processes(given["variable"])
"""
_SIGNAL = """
os.kill(given["pid"], 0)
said = open(f"/proc/{given['pid']}/cmdline").read()
if given["marker"] in said:
    return said
raise OSError(errno.ESRCH, "another process has that number here")
"""
_NEW_FILES = """
return first_that_works(
    lambda path=path: os.write(os.open(path, os.O_WRONLY | os.O_CREAT), b"x") for path in given["new"]
)
"""
_REPLACE = """
path, new = given["shared"], given["new"][-1]
return first_that_works((
    lambda: os.rename(path, new) or 1, lambda: os.unlink(path) or 1, lambda: os.chmod(path, 0o777) or 1,
    lambda: os.write(os.open(path, os.O_WRONLY), b"x"),
))
"""
_PASSWD = """
with open("/etc/passwd", "ab") as file:
    file.write(b"")
open("/etc/" + os.path.basename(given["new"][0]), "w").close()
return "written"
"""
_LOCK = """
import fcntl
fd = os.open(given["shared"], os.O_RDONLY)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    return "it meets the lock that the machine holds"
raise NoEffect("its own lock")
"""
_INOTIFY = """
fd = libc.inotify_init1(os.O_CLOEXEC)
if fd < 0 or libc.inotify_add_watch(fd, given["shared"].encode(), 0xFFF) < 0:
    raise OSError(ctypes.get_errno(), "no watch")
if select.select([fd], [], [], 0.3)[0]:
    return "it saw the machine open the file"
raise NoEffect("saw nothing")
"""


def _host(name: str, means: str, body: str, *denied: str, on_host: bool = False) -> Attempt:
    return Attempt(name=name, means=means, body=body, denied=HIDDEN | set(denied), needs=_HOST, on_host=on_host)


HOST = (
    _host(
        "read files of the machine in ten public directories",
        _FILES,
        'return first_that_works(lambda path=path: read(path) for path in given["files"])',
    ),
    _host("find a file of the machine anywhere", _FILES, _WALK.format(name='given["marker"]')),
    _host("read a file of the machine through /proc/1/root", _FILES, 'return read("/proc/1/root" + given["files"][0])'),
    _host("read password hashes, the machine's id and its SSH keys", _FILES, _KEYS),
    _host(
        "read files of the machine's root under /usr",
        "Code inside reads what only the machine's root may read.",
        'return first_that_works((lambda: read(given["secret"]), lambda: listed(given["secrets"]),'
        ' lambda: read(given["secrets"] + "/key")))',
    ),
    _host("meet a lock on a shared file", _SHARED, _LOCK),
    _host("watch a shared file", _SHARED, _INOTIFY, "EMFILE"),
    _host("make files in directories of the machine", _CHANGES, _NEW_FILES, on_host=True),
    _host("change a file under /usr", _CHANGES, _REPLACE, "EBUSY", on_host=True),
    Attempt(
        name="change /etc/passwd",
        means="Code inside makes itself a user of the machine.",
        body=_PASSWD,
        users=("root",),
        needs=_HOST,
        on_host=True,
    ),
    _host(
        "find a process of the machine",
        "Code inside sees what runs on the machine, with its arguments.",
        'return said_by_processes(given["marker"])',
    ),
    _host("signal a process of the machine", "Code inside ends programs of the machine.", _SIGNAL),
    _host(
        "find a variable of the program that made the sandbox",
        "Code inside reads the keys in the caller's environment.",
        _VARIABLE,
    ),
    _host(
        "connect to an abstract unix socket of the machine",
        "Code inside talks to services of the machine that trust every local program.",
        'return unix("\\0" + given["marker"])',
        "ECONNREFUSED",
    ),
    _host(
        "connect to a unix socket in /tmp of the machine",
        "Code inside talks to services of the machine that trust every local program.",
        'return unix(given["socket"])',
        "ECONNREFUSED",
    ),
)

_OTHER = "Code inside reads, notices or disturbs another sandbox."


def _neighbour(name: str, body: str, *denied: str) -> Attempt:
    denials = (REFUSED if denied else HIDDEN) | set(denied)
    return Attempt(name=name, means=_OTHER, body=body, denied=denials, needs=frozenset({"neighbour"}))


NEIGHBOUR = (
    _neighbour("find a file of another sandbox", _WALK.format(name='given["neighbour"]["marker"]')),
    _neighbour("find a process of another sandbox", 'return said_by_processes(given["neighbour"]["marker"])'),
    _neighbour(
        "connect to an abstract unix socket of another sandbox",
        'return unix("\\0" + given["neighbour"]["marker"])',
        "ECONNREFUSED",
    ),
    _neighbour(
        "connect to another sandbox's port on 127.0.0.1",
        'return connect("127.0.0.1", given["neighbour"]["port"])',
        *("ECONNREFUSED", "ENETUNREACH"),
    ),
)
