"""Attempts by system calls that reach into the kernel. None of them does harm where it is allowed."""

from __future__ import annotations

from skerry.audit.attempt import REFUSED, Attempt

_MOUNTS = "Code inside rearranges the file systems it sees, and uncovers what was hidden below a mount."
_NAMESPACE = "Code inside is root in its own namespace, with far more of the kernel to attack."
_SURFACE = "A large part of the kernel, in which holes are often found, lies open to code inside."
_MACHINE = "Code inside changes or ends the whole machine."
_AGENT = "Code inside reads or controls the program that Skerry controls the sandbox by."


def _call(name: str, means: str, body: str, *agreed: str, absent: tuple[str, ...] = ()) -> Attempt:
    """`agreed`: errors that come only after the kernel has said yes. `absent`: those of one that has no such thing."""
    return Attempt(name=name, means=means, body=body, agreed=frozenset(agreed), denied=REFUSED | set(absent))


_PLACE = "import tempfile\nplace = tempfile.mkdtemp().encode()\n"
_BIND = f"""
{_PLACE}
syscall("mount", b"/", place, None, 0x1000, None)
return syscall("umount2", place, 2)
"""
_UNMOUNT = """
def unmount(path):
    try:
        return syscall("umount2", path, 12)  # 4 only marks a mount that nothing uses, 8 follows no link
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EBUSY):
            return path
        raise
places = [line.split()[4].encode() for line in open("/proc/self/mountinfo")]
return first_that_works(lambda path=path: unmount(path) for path in places if path != b"/")
"""
_QUOTA = """
sources = [line.split(" - ")[1].split()[1] for line in open("/proc/self/mountinfo")]
disks = {*(each for each in sources if each.startswith("/dev/")), "/dev/vda", "/dev/sda", "/dev/nvme0n1"}
return first_that_works(lambda disk=disk: syscall("quotactl", 0x80000200, disk.encode(), 0, None) for disk in disks)
"""
_TRACED = """
pid = {pid}
if pid == os.getpid():
    raise NotTried("it is this program itself")
syscall("ptrace", {how}, pid, 0, 0)
if {how} == 16:
    os.waitpid(pid, 0x40000000)
    syscall("ptrace", 17, pid, 0, 0)
return pid
"""


def _mount(name: str, kind: bytes, options: str = "None") -> Attempt:
    body = (
        f'{_PLACE}syscall("mount", {kind!r}, place, {kind!r}, 0, {options})\nsyscall("umount2", place, 2)\nreturn place'
    )
    return _call(name, _MOUNTS, body, "EBUSY", "EINVAL", absent=("ENODEV",))


def _unshare(name: str, flags: int) -> Attempt:
    return _call(name, _NAMESPACE, f'return syscall("unshare", {flags:#x})')


CALLS = (
    _mount("mount a tmpfs", b"tmpfs"),
    _mount("mount proc again", b"proc"),
    _mount("mount a cgroup", b"cgroup", 'b"memory"'),
    _mount("mount cgroup2", b"cgroup2"),
    _call("remount /usr writable", _MOUNTS, 'return syscall("mount", None, b"/usr", None, 0x1020, None)', "EINVAL"),
    _call("bind / elsewhere", _MOUNTS, _BIND, "EINVAL"),
    _call("unmount something", _MOUNTS, _UNMOUNT, absent=("EINVAL",)),  # which the kernel says of a locked mount
    _call("pivot_root", _MOUNTS, f'{_PLACE}return syscall("pivot_root", place, place)', "EINVAL", "EBUSY"),
    _call("fsopen", _MOUNTS, 'return syscall("fsopen", b"tmpfs", 0)'),
    _call("open_tree", _MOUNTS, 'return syscall("open_tree", -100, b"/", 1)'),
    _call("move_mount", _MOUNTS, f'{_PLACE}return syscall("move_mount", -100, place, -100, place, 0)', "EINVAL"),
    _call("mount_setattr", _MOUNTS, 'return syscall("mount_setattr", -100, b"/", 0, buffer(32), 32)'),
    _unshare("unshare a user namespace", 0x10000000),
    _unshare("unshare a mount namespace", 0x00020000),
    _unshare("unshare a network namespace", 0x40000000),
    _call(
        "clone a user namespace",
        _NAMESPACE,
        'made = syscall("clone", 0x10000000 | 17, 0, 0, 0, 0)\nif not made: os._exit(0)\nreturn made',
    ),
    _call(
        "clone3 a user namespace",
        _NAMESPACE,
        "import struct\n"
        'made = syscall("clone3", struct.pack("11Q", 0x10000000, 0, 0, 0, 17, *[0] * 6), 88)\n'
        "if not made: os._exit(0)\nreturn made",
    ),
    _call(
        "setns to the mounts of process 1",
        _MOUNTS,
        'return syscall("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)',
        absent=("ENOENT",),
    ),
    _call(
        "setns to its own user namespace",
        _NAMESPACE,
        'return syscall("setns", os.open("/proc/self/ns/user", os.O_RDONLY), 0)',
        absent=("EINVAL",),
    ),
    _call("keyctl", _SURFACE, 'return syscall("keyctl", 0, -3, 1)'),
    _call("add_key", _SURFACE, 'return syscall("add_key", b"user", b"x", b"y", 1, -3)'),
    _call(
        "bpf",
        _SURFACE,
        'import struct\nreturn syscall("bpf", 0, struct.pack("5I", 2, 4, 4, 1, 0) + bytes(108), 128)',
    ),
    _call(
        "perf_event_open",
        _SURFACE,
        'import struct\nattributes = struct.pack("IIQQQQQ", 1, 112, 9, 0, 0, 0, 0x60) + bytes(64)\n'
        'return syscall("perf_event_open", attributes, 0, -1, -1, 0)',
    ),
    _call("io_uring", _SURFACE, 'return syscall("io_uring_setup", 1, buffer(128))'),
    _call("userfaultfd", _SURFACE, 'return syscall("userfaultfd", 1)'),
    _call(
        "queue asynchronous file requests",
        "Code inside uses up queues that the kernel counts for the whole machine.",
        'return syscall("io_setup", 1, buffer(8))',
    ),
    _call("load a kernel module", _MACHINE, 'return syscall("init_module", b"x", 1, b"")', "ENOEXEC"),
    _call("kexec", _MACHINE, 'return syscall("kexec_load", 0, 0, None, 0x8000)', "EINVAL"),
    _call("reboot", _MACHINE, 'return syscall("reboot", 0xfee1dead, 672274793, 0x89abcdef, None)', "EINVAL"),
    _call("swapon", _MACHINE, 'return syscall("swapon", b"/tmp/no-such-file", 0)', "ENOENT", "EINVAL"),
    _call(
        "set the clock",
        _MACHINE,
        "import struct\nnow = struct.pack('qq', *divmod(time.time_ns() // 1000, 10**6))\n"
        'return syscall("settimeofday", now, None)',
    ),
    _call(
        "set the clock by clock_settime",
        _MACHINE,
        'import struct\nreturn syscall("clock_settime", 0, struct.pack("qq", *divmod(time.time_ns(), 10**9)))',
    ),
    _call(
        "set the host name",
        "Code inside changes what the machine, or at least its own sandbox, is called.",
        'name = os.uname().nodename.encode()\nreturn syscall("sethostname", name, len(name))',
    ),
    _call(
        "open_by_handle_at",
        "Code inside opens any file of a file system by its number, wherever it lies.",
        'import struct\nreturn syscall("open_by_handle_at", -100, struct.pack("ii8s", 8, 1, bytes(8)), 0)',
        *("ESTALE", "EINVAL"),
    ),
    _call(
        "read the kernel log",
        "Code inside learns addresses and events of the machine's kernel.",
        'return syscall("syslog", 3, buffer(4096), 4096)',
    ),
    _call("iopl", "Code inside talks to the hardware.", 'return syscall("iopl", 3)'),
    _call("acct", _MACHINE, 'return syscall("acct", b"/tmp/no-such-file")', "ENOENT"),
    _call(
        "quotactl",
        "Code inside changes the disk limits of others.",
        _QUOTA,
        absent=("ENOENT", "ENODEV"),
    ),
    _call("attach to process 1", _AGENT, _TRACED.format(pid=1, how=16)),
    _call("seize process 1", _AGENT, _TRACED.format(pid=1, how=0x4206)),
    _call("attach to the supervisor", _AGENT, _TRACED.format(pid="parent", how=16)),
    _call(
        "read the memory of process 1 by process_vm_readv",
        _AGENT,
        "import struct\nplace = buffer(8)\n"
        'mine = struct.pack("QQ", ctypes.addressof(place), 8)\n'
        'return syscall("process_vm_readv", 1, mine, 1, struct.pack("QQ", 0x400000, 8), 1, 0)',
        "EFAULT",
    ),
    _call(
        "take a descriptor of process 1",
        _AGENT,
        'return syscall("pidfd_getfd", syscall("pidfd_open", 1, 0), 3, 0)',
        "EBADF",
    ),
)
