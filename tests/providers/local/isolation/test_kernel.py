"""Attacks on the kernel's interfaces: none of them may succeed, whoever makes them."""

from __future__ import annotations

import pytest

from tests.providers.local.isolation.conftest import Attack

# x86-64 and arm64 number these calls differently; the probes look them up by name inside.
NUMBERS = """
import platform
N = {
    "x86_64": dict(mount=165, umount2=166, ptrace=101, keyctl=250, add_key=248, bpf=321, unshare=272, setns=308, clone=56,
        clone3=435, perf_event_open=298, io_uring_setup=425, userfaultfd=323, init_module=175, kexec_load=246, reboot=169,
        swapon=167, settimeofday=164, sethostname=170, open_by_handle_at=304, syslog=103, pivot_root=155, fsopen=430,
        open_tree=428, mount_setattr=442, iopl=172, acct=163, quotactl=179, process_vm_readv=310, pidfd_getfd=438,
        move_mount=429, name_to_handle_at=303, clock_settime=227, io_setup=206, ioctl=16),
}[platform.machine()]
"""

CALLS = {
    "mount a tmpfs": 'return syscall(N["mount"], b"tmpfs", b"/tmp", b"tmpfs", 0, None)',
    "mount proc again": 'return syscall(N["mount"], b"proc", b"/mnt", b"proc", 0, None)',
    "remount /usr writable": 'return syscall(N["mount"], None, b"/usr", None, 0x1020, None)',
    "bind / elsewhere": 'return syscall(N["mount"], b"/", b"/mnt", None, 0x1000, None)',
    "mount a cgroup": 'return syscall(N["mount"], b"cgroup", b"/mnt", b"cgroup", 0, b"memory")',
    "mount cgroup2": 'return syscall(N["mount"], b"cgroup2", b"/mnt", b"cgroup2", 0, None)',
    "unmount /usr": 'return syscall(N["umount2"], b"/usr", 2)',
    "unmount /proc/sys": 'return syscall(N["umount2"], b"/proc/sys", 2)',
    "pivot_root": 'return syscall(N["pivot_root"], b"/", b"/mnt")',
    "fsopen": 'return syscall(N["fsopen"], b"tmpfs", 0)',
    "open_tree": 'return syscall(N["open_tree"], -100, b"/", 1)',
    "move_mount": 'return syscall(N["move_mount"], -100, b"/usr", -100, b"/mnt", 0)',
    "mount_setattr": 'return syscall(N["mount_setattr"], -100, b"/usr", 0, ctypes.create_string_buffer(32), 32)',
    "keyctl": 'return syscall(N["keyctl"], 0, -3, 1)',
    "add_key": 'return syscall(N["add_key"], b"user", b"x", b"y", 1, -3)',
    "bpf": 'return syscall(N["bpf"], 0, ctypes.create_string_buffer(128), 128)',
    "unshare a user namespace": 'return syscall(N["unshare"], 0x10000000)',
    "unshare a mount namespace": 'return syscall(N["unshare"], 0x00020000)',
    "unshare a network namespace": 'return syscall(N["unshare"], 0x40000000)',
    "clone a user namespace": 'return syscall(N["clone"], 0x10000000 | 17, 0, 0, 0, 0)',
    "clone3 a user namespace": 'return syscall(N["clone3"], struct.pack("11Q", 0x10000000, *[0] * 10), 88)',
    "setns to init's mounts": 'return syscall(N["setns"], os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)',
    "setns to itself": 'return syscall(N["setns"], os.open("/proc/self/ns/user", os.O_RDONLY), 0)',
    "perf_event_open": 'return syscall(N["perf_event_open"], ctypes.create_string_buffer(128), 0, -1, -1, 0)',
    "io_uring": 'return syscall(N["io_uring_setup"], 1, ctypes.create_string_buffer(128))',
    "userfaultfd": 'return syscall(N["userfaultfd"], 1)',
    "load a module": 'return syscall(N["init_module"], b"x", 1, b"")',
    "kexec": 'return syscall(N["kexec_load"], 0, 0, None, 0)',
    "reboot": 'return syscall(N["reboot"], 0xfee1dead, 672274793, 0x89abcdef, None)',
    "swapon": 'return syscall(N["swapon"], b"/tmp/x", 0)',
    "set the clock": 'return syscall(N["settimeofday"], struct.pack("qq", 0, 0), None)',
    "set the clock by clock_settime": 'return syscall(N["clock_settime"], 0, struct.pack("qq", 0, 0))',
    "set the host name": 'return syscall(N["sethostname"], b"x", 1)',
    "open_by_handle_at": 'return syscall(N["open_by_handle_at"], 3, struct.pack("ii8s", 8, 1, b"\\0" * 8), 0)',
    "read the kernel log": 'return syscall(N["syslog"], 3, ctypes.create_string_buffer(4096), 4096)',
    "iopl": 'return syscall(N["iopl"], 3)',
    "acct": 'return syscall(N["acct"], b"/tmp/x")',
    "quotactl": 'return syscall(N["quotactl"], 0x800002, b"/dev/x", 0, None)',
    "attach to PID 1": 'return syscall(N["ptrace"], 16, 1, 0, 0)',
    "seize PID 1": 'return syscall(N["ptrace"], 0x4206, 1, 0, 0)',
    "attach to the supervisor": 'return syscall(N["ptrace"], 16, os.getppid(), 0, 0)',
    "read PID 1's memory by process_vm_readv": 'return syscall(N["process_vm_readv"], 1, None, 0, None, 0, 0)',
    "take a descriptor of PID 1": 'return syscall(N["pidfd_getfd"], os.pidfd_open(1), 3, 0)',
}


@pytest.mark.parametrize("what", CALLS)
def test_system_call_is_refused(attack: Attack, what: str) -> None:
    attack(NUMBERS + CALLS[what])


@pytest.mark.parametrize("family", [2, 10, 16, 17, 30, 38, 40, 44])
def test_a_pair_of_sockets_of_another_family_than_unix_is_not_even_made(attack: Attack, family: int) -> None:
    """The kernel's own refusal comes after it has made two of them, and loaded the family's module."""
    for kind in (1, 2, 3, 5):
        assert attack(f"return syscall(53, {family}, {kind}, 0, ctypes.create_string_buffer(8))") == "ENOSYS"


def test_requests_of_asynchronous_files_do_not_exist(attack: Attack) -> None:
    """The kernel counts their queues for the whole machine."""
    body = NUMBERS + 'return syscall(N["io_setup"], 1, ctypes.create_string_buffer(8))'
    assert attack(body) == "ENOSYS"


TYPING = """
import fcntl, pty, termios
child, terminal = pty.fork()
if child == 0:
    numbers = [0]
    for request in ({request}, {request} | 7 << 32):
        result = libc.syscall(ctypes.c_long(N["ioctl"]), 0, ctypes.c_ulong(request), ctypes.c_char_p(b"\x02x"))
        numbers.append(ctypes.get_errno() if result < 0 else 0)
    os._exit(0 if numbers[1:] == [errno.EPERM] * 2 else 1)
if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
    return "typed"
raise OSError(errno.EPERM, "refused")
"""


@pytest.mark.parametrize("request_code", [0x5412, 0x541C])
def test_a_program_cannot_type_into_its_terminal(attack: Attack, request_code: int) -> None:
    attack(NUMBERS + TYPING.format(request=request_code))


FILES_TO_READ = [
    "/proc/1/mem",
    "/proc/1/maps",
    "/proc/1/environ",
    "/proc/1/auxv",
    "/proc/1/pagemap",
    "/proc/1/syscall",
    "/proc/1/stack",
    "/proc/kcore",
    "/proc/kmsg",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/vda",
    "/dev/kvm",
    "/dev/fuse",
    "/sys/kernel/debug/x",
    "/proc/pressure/memory",
    "/proc/1/root/etc/passwd",
    "/proc/1/cwd/etc/passwd",
    "/proc/1/map_files/x",
]


@pytest.mark.parametrize("path", FILES_TO_READ)
def test_file_of_the_kernel_or_of_pid_1_is_unreadable(attack: Attack, path: str) -> None:
    attack(f"""
data = open("{path}", "rb").read(16)
if not data:
    raise OSError(errno.ENODATA, "masked")
return data
""")


@pytest.mark.parametrize("name", ["exe", "root", "cwd", "fd/3", "ns/mnt"])
def test_links_of_pid_1_say_nothing(attack: Attack, name: str) -> None:
    attack(f'return os.readlink("/proc/1/{name}")')


def test_descriptors_of_pid_1_cannot_be_opened(attack: Attack) -> None:
    attack("""
opened = []
for number in os.listdir("/proc/1/fd"):
    try:
        opened.append(os.open(f"/proc/1/fd/{number}", os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        pass
if not opened:
    raise OSError(errno.EACCES, "none")
return opened
""")


FILES_TO_WRITE = [
    "/proc/1/mem",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/fs/inotify/max_user_instances",
    "/proc/sys/user/max_inotify_instances",
    "/proc/sysrq-trigger",
    "/proc/self/uid_map",
    "/proc/self/gid_map",
    "/proc/irq/default_smp_affinity",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/power/state",
    "/sys/fs/cgroup/release_agent",
    "/sys/class/net/lo/mtu",
]


@pytest.mark.parametrize("path", FILES_TO_WRITE)
def test_file_of_the_kernel_is_unwritable(attack: Attack, path: str) -> None:
    attack(f'return os.write(os.open("{path}", os.O_WRONLY), b"1")')


DEVICES = {
    "block": "0o60600, os.makedev(254, 0)",
    "memory": "0o20600, os.makedev(1, 1)",
    "kvm": "0o20600, os.makedev(10, 232)",
}


@pytest.mark.parametrize("kind", DEVICES)
def test_mknod_makes_no_device(attack: Attack, kind: str) -> None:
    attack(f'return os.mknod("/tmp/device-{kind}-" + str(os.getpid()), {DEVICES[kind]})')


RIGHTS = {
    "lower its own out-of-memory score": 'return os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-900")',
    "raise its priority": "os.setpriority(os.PRIO_PROCESS, 0, -20); return 1",
    "raise the limit of open files": "import resource as r\n"
    "try:\n    r.setrlimit(r.RLIMIT_NOFILE, (10**6, 10**6))\nexcept ValueError: raise OSError(1, 'refused')\nreturn 1",
    "kill PID 1": "os.kill(1, 9); import time; time.sleep(0.2); os.kill(1, 0) or 1; raise OSError(1, 'it lives on')",
    "open a raw socket": "return socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "open a packet socket": "return socket.socket(17, socket.SOCK_RAW, 0)",
    "open a vsock": "return socket.socket(40, socket.SOCK_STREAM, 0)",
    "open a crypto socket": "return socket.socket(38, socket.SOCK_SEQPACKET, 0)",
}


@pytest.mark.parametrize("what", RIGHTS)
def test_rights_cannot_be_raised(attack: Attack, what: str) -> None:
    attack(RIGHTS[what])


def test_no_capability_reaches_the_machine(sandbox: object, attack: Attack) -> None:
    attack(
        """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
bounding = int(status["CapBnd"], 16)
allowed = sum(1 << n for n in (0, 1, 3, 4, 5, 6, 7, 10, 18))
if status["NoNewPrivs"].strip() != "1" or status["Seccomp"].strip() != "2" or bounding & ~allowed:
    return status
raise OSError(1, "few capabilities, no new ones, filtered")
"""
    )


def test_chroot_cannot_leave_the_root(attack: Attack) -> None:
    attack(
        """
if os.getuid() == 0:
    os.makedirs("/tmp/jail", exist_ok=True)
    top = os.open("/", os.O_RDONLY)
    os.chroot("/tmp/jail")
    os.fchdir(top)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
return open("/etc/machine-id").read()
"""
    )
