"""Attempts on what the kernel shows as files, on devices, and on rights."""

from __future__ import annotations

from skerry.audit.attempt import HIDDEN, REFUSED, UNREACHABLE, Attempt

_AGENT = "Code inside reads or controls the program that Skerry controls the sandbox by."
_SECRETS = "Code inside reads the memory or the log of the machine's kernel."
_DISKS = "Code inside reads the machine's disks, past every permission."
_SETTINGS = "Code inside changes how the whole machine behaves."
_NEIGHBOURS = "Code inside learns what the machine and other sandboxes do."

_READ = {
    **dict.fromkeys((f"/proc/1/{name}" for name in ("mem", "maps", "environ", "auxv", "pagemap", "syscall")), _AGENT),
    **dict.fromkeys(("/proc/1/stack", "/proc/1/root/etc/passwd", "/proc/1/cwd/etc/passwd"), _AGENT),
    "/proc/kcore": _SECRETS,
    "/proc/pressure/memory": _NEIGHBOURS,
}
_OPENED = {
    **dict.fromkeys(("/proc/kmsg", "/dev/kmsg", "/dev/mem"), _SECRETS),
    **dict.fromkeys(("/dev/vda", "/dev/sda", "/dev/nvme0n1"), _DISKS),
    "/dev/kvm": "Code inside runs virtual machines, and reaches that part of the kernel.",
    "/dev/fuse": "Code inside makes file systems, and reaches that part of the kernel.",
}
_LISTED = {
    "/proc/1/map_files": _AGENT,
    "/sys/kernel/debug": "Code inside reads the kernel's own notes about all processes.",
    "/sys/block": "Code inside sees the machine's disks, and the files that they lie in.",
    "/sys/fs/btrfs": "Code inside sees how much every other sandbox has written.",
}
_LINKS = ("exe", "root", "cwd", "fd/3", "ns/mnt")
_WRITTEN = {
    "/proc/1/mem": _AGENT,
    **dict.fromkeys(("/proc/self/uid_map", "/proc/self/gid_map"), "Code inside becomes another user of the machine."),
    **dict.fromkeys(
        (
            *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_forward"),
            *("/proc/sys/fs/inotify/max_user_instances", "/proc/sys/user/max_inotify_instances"),
            *("/proc/irq/default_smp_affinity", "/sys/kernel/mm/transparent_hugepage/enabled"),
            *("/sys/fs/cgroup/release_agent", "/sys/class/net/lo/mtu"),
        ),
        _SETTINGS,
    ),
}
_HARMLESS = {"/proc/sys/vm/drop_caches": b"1", "/proc/sysrq-trigger": b"h", "/sys/power/state": b"x"}
"""Where to write what a file says would not do: forget cached files; print a help; a state that there is not."""
_DEVICES = {
    "block": ("0o60600, os.makedev(254, 0)", _DISKS),
    "memory": ("0o20600, os.makedev(1, 1)", _SECRETS),
    "kvm": ("0o20600, os.makedev(10, 232)", "Code inside runs virtual machines, and reaches that part of the kernel."),
}
_TYPING = """
import pty
child, terminal = pty.fork()
if child == 0:
    numbers = []
    for request in ({request}, {request} | 7 << 32):
        try:
            numbers.append(syscall("ioctl", 0, request, b"\\x02x"))
        except OSError as error:
            numbers.append(error.errno)
    os._exit(max(numbers) if 0 not in numbers else 0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
if code:
    raise OSError(abs(code), "refused")
return "typed"
"""
_CAPABILITIES = """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
bounding = int(status["CapBnd"], 16)
allowed = sum(1 << n for n in (0, 1, 3, 4, 5, 6, 7, 10, 18))
if status["NoNewPrivs"].strip() != "1" or status["Seccomp"].strip() != "2" or bounding & ~allowed:
    return {name: status[name].strip() for name in ("NoNewPrivs", "Seccomp", "CapBnd")}
raise NoEffect("few, no new ones, calls filtered")
"""
_CHROOT = """
import tempfile
top = os.open("/", os.O_RDONLY)
os.chroot(tempfile.mkdtemp())
os.fchdir(top)
for _ in range(64):
    os.chdir("..")
os.chroot(".")
if os.path.samestat(os.stat("/"), os.fstat(top)):
    raise NoEffect("back in its own root")
return os.listdir("/")
"""
_SET_USER_ID = """
import shutil, subprocess
cat = shutil.which("cat")
if cat is None:
    raise NotTried("there is no program cat")
place = "/tmp/set-user-id-" + str(os.getpid())
shutil.copy(cat, place)
os.chmod(place, 0o4755)
def become():
    os.setgid(65534)
    os.setuid(65534)
try:
    command = ["cat", "/proc/self/status"]
    status = subprocess.check_output(command, executable=place, preexec_fn=become, text=True)
finally:
    os.unlink(place)
if status.split("Uid:")[1].split()[1] == "0":
    return "root again"
raise NoEffect("it stayed user 65534")
"""
_DESCRIPTORS = """
opened = []
for number in os.listdir("/proc/1/fd"):
    try:
        opened.append(os.open(f"/proc/1/fd/{number}", os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        pass
if not opened:
    raise OSError(errno.EACCES, "none")
return opened
"""
_KILL = """
os.kill(1, 9)
time.sleep(0.2)
raise NoEffect("it lives on")
"""
_OTHERS = """
theirs = [pid for pid in processes() if os.stat(f"/proc/{pid}").st_uid != os.getuid()]
return first_that_works(lambda pid=pid: os.kill(pid, 0) or pid for pid in theirs)
"""
_FILES = """
import resource
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (10**6, 10**6))
except ValueError:
    raise OSError(errno.EPERM, "refused")
return 10**6
"""
_AGENT_FILE = "/.skerry/agent"
_REPLACED = f"""
place = "{_AGENT_FILE}"
return first_that_works((
    lambda: os.open(place, os.O_WRONLY), lambda: os.unlink(place) or 1, lambda: os.rename(place, place + ".old") or 1,
    lambda: os.rename("/.skerry", "/.old") or 1, lambda: os.chmod(place, 0o777) or 1,
))
"""
_SOCKETS = """
lines = open("/proc/net/unix").read().split("\\n")
names = [line.split()[-1] for line in lines if "skerry" in line or "agent.sock" in line]
for folder, folders, files in os.walk("/"):
    if folder == "/":
        folders[:] = [name for name in folders if name not in ("proc", "sys", "usr")]
    names += [f"{folder}/{name}" for name in files if name == "agent.sock"]
if names:
    return names
raise OSError(errno.ENOENT, "none")
"""


_LATER = frozenset({"EINVAL", "EIO"})
"""What comes of reading or writing nonsense, once a file is open."""


def _read(path: str, means: str) -> Attempt:
    return Attempt(name=f"read {path}", means=means, body=f'return read("{path}")', denied=HIDDEN, agreed=_LATER)


def _write(path: str, means: str, data: bytes = b"") -> Attempt:
    body = f'return rewrite("{path}", {data!r})'
    return Attempt(name=f"write {path}", means=means, body=body, denied=HIDDEN, agreed=_LATER)


def _right(name: str, means: str, body: str, *denied: str) -> Attempt:
    return Attempt(name=name, means=means, body=body, denied=REFUSED | set(denied))


def _socket(name: str, arguments: str) -> Attempt:
    means = "Code inside sends packets of any form, or reaches a part of the kernel that has nothing to do with it."
    body = f"return socket.socket({arguments})"
    return Attempt(name=name, means=means, body=body, denied=UNREACHABLE | {"EPROTONOSUPPORT", "ESOCKTNOSUPPORT"})


KERNEL_FILES = (
    *(_read(path, means) for path, means in _READ.items()),
    *(
        Attempt(name=f"open {path}", means=means, body=f'return opened("{path}")', denied=HIDDEN)
        for path, means in _OPENED.items()
    ),
    *(
        Attempt(name=f"list {path}", means=means, body=f'return listed("{path}")', denied=HIDDEN)
        for path, means in _LISTED.items()
    ),
    *(
        Attempt(
            name=f"follow /proc/1/{name}", means=_AGENT, body=f'return os.readlink("/proc/1/{name}")', denied=HIDDEN
        )
        for name in _LINKS
    ),
    Attempt(name="open the descriptors of process 1", means=_AGENT, body=_DESCRIPTORS, denied=HIDDEN),
    *(_write(path, means) for path, means in _WRITTEN.items()),
    *(_write(path, _SETTINGS, data) for path, data in _HARMLESS.items()),
    *(
        _right(
            f"make a {name} device",
            means,
            f'place = f"/tmp/device-{{os.getpid()}}"\nos.mknod(place, {arguments})\n'
            "try:\n    os.open(place, os.O_RDONLY | os.O_NONBLOCK)\nfinally:\n    os.unlink(place)\nreturn place",
            *("ENXIO", "ENODEV"),
        )
        for name, (arguments, means) in _DEVICES.items()
    ),
)
RIGHTS = (
    *(
        _right(
            f"type into its terminal ({name})",
            "Code inside types commands into the terminal of the person who runs it.",
            _TYPING.format(request=request),
            *("EIO", "ENOTTY"),  # a kernel without the first; the second is for consoles alone
        )
        for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C))
    ),
    _right(
        "lower its own out-of-memory score",
        "Where memory runs out, the kernel kills processes of the machine instead.",
        'return os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-900")',
    ),
    _right(
        "raise its priority",
        "Code inside takes processor time from the machine and other sandboxes.",
        "os.setpriority(os.PRIO_PROCESS, 0, -20)\nreturn -20",
    ),
    _right("raise the limit of open files", "Code inside uses up the machine's open files.", _FILES),
    _socket("open a raw socket", "socket.AF_INET, socket.SOCK_RAW, 1"),
    _socket("open a packet socket", "17, socket.SOCK_RAW, 0"),
    _socket("open a vsock", "40, socket.SOCK_STREAM, 0"),
    _socket("open a crypto socket", "38, socket.SOCK_SEQPACKET, 0"),
    _right(
        "hold rights that reach the machine",
        "One more hole in the kernel would be enough to get out.",
        _CAPABILITIES,
    ),
    _right("leave its root by chroot", "Code inside sees files outside of the sandbox's root.", _CHROOT),
    Attempt(
        name="become root by a set-user-ID file",
        means="A user inside gains rights by a file that somebody left.",
        body=_SET_USER_ID,
        users=("root",),
    ),
)
AGENT = (
    _right("kill process 1", "Code inside ends the sandbox from within, past its owner.", _KILL),
    Attempt(
        name="signal processes of other users",
        means="Code inside stops the agent's helpers and commands of other users.",
        body=_OTHERS,
        users=("user",),
    ),
    _right("replace the agent", _AGENT, _REPLACED, "ENOENT", "EBUSY", "ETXTBSY", "EXDEV"),
    _right("find the agent's socket", _AGENT, _SOCKETS, "ENOENT"),
    _right(
        "inherit a descriptor of the agent",
        _AGENT,
        "if descriptors > 3:\n    return descriptors\nraise NoEffect('only its input and outputs')",
    ),
)
