"""The filter that says which system calls a sandbox may make.

A call that is not listed does not exist for it (ENOSYS), so programs take their fall-back path; calls that would reach
the machine are refused (EPERM). crun gets the filter compiled beforehand (tools/gen_seccomp.py), runc as
rules.
"""

from __future__ import annotations

ALLOWED = (
    "accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown chroot clock_getres "
    "clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create "
    "epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 "
    "execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 "
    "fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync "
    "ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_mempolicy get_robust_list "
    "get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername "
    "getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid "
    "getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1 "
    "inotify_rm_watch ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self "
    "lchown lgetxattr link linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat madvise "
    "map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall "
    "mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget "
    "msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause pidfd_open "
    "pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 "
    "process_madvise process_mrelease pselect6 ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat "
    "readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir "
    "rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait "
    "rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam "
    "sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler "
    "sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto set_mempolicy "
    "set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid "
    "setpriority setregid setresgid setresuid setreuid setsid setsockopt setuid setxattr shmat shmctl shmdt shmget "
    "shutdown sigaltstack signalfd signalfd4 splice stat statfs statx symlink symlinkat sync sync_file_range syncfs "
    "sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create "
    "timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork "
    "vmsplice wait4 waitid write writev"
).split()

REFUSED = (
    "acct add_key bpf clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig fsmount fsopen "
    "fspick get_kernel_syms init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp "
    "kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages mount mount_setattr move_mount move_pages "
    "name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root "
    "process_vm_readv process_vm_writev quotactl quotactl_fd reboot request_key setdomainname sethostname setns "
    "settimeofday stime swapoff swapon syslog umount umount2 unshare uselib userfaultfd ustat vhangup vm86 vm86old"
).split()

NAMESPACE_FLAGS = 0x7E02_0000
"""CLONE_NEW* of clone(2): no namespace inside a sandbox. clone3 hides its flags in memory, so it is not listed."""

SOCKET_FAMILIES = (1, 2, 10, 16)
"""unix, IPv4, IPv6, netlink."""
PAIR_FAMILIES = (1,)
"""The families of socketpair(2): it makes two sockets of any family before it finds that the family has no pairs."""

PERSONALITIES = (0x0, 0x0008, 0x20000, 0x20008, 0x40000, 0xFFFF_FFFF)
"""What personality(2) may set: Linux, uname26, no address randomisation (debuggers), and the query."""

BTRFS_IOCTLS = 0x9400
"""The type of btrfs's requests of ioctl(2), under `IOCTL_TYPE`: a subvolume that a sandbox made in a volume would be
outside of every disk limit, and block the volume's removal."""
IOCTL_TYPE = 0xFF00
SHARED_IOCTLS = (0x4004_9409, 0x4020_940D, 0xC018_9436)
"""Requests of that type that every file system has: FICLONE, FICLONERANGE, FIDEDUPERANGE."""

TERMINAL_IOCTLS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: with them a program types commands into its terminal as if its user had typed them."""

RESOURCES = 16
CORE = 4
"""RLIMIT_CORE, of the `RESOURCES` that setrlimit(2) and prlimit(2) limit. The launcher sets it to 1, the one value with
which a crash runs no handler of the machine, so no process may set it to 0. Programs that keep keys (gpg, ssh-agent) do
just that, and end if they cannot: they are told that it worked. No core is written with 1 either."""

UNLISTED_ERRNO = 38
REFUSED_ERRNO = 1


def oci_rules() -> dict[str, object]:
    """The same filter in the form of an OCI configuration, for runtimes that compile it themselves."""

    def compare(index: int, value: int, operator: str = "SCMP_CMP_EQ") -> dict[str, object]:
        return {"index": index, "value": value, "op": operator}

    def low_half(index: int, value: int, mask: int = 0xFFFF_FFFF) -> dict[str, object]:
        """Of an argument whose upper half the kernel does not look at."""
        return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}

    def allow(name: str, *arguments: dict[str, object]) -> dict[str, object]:
        return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments}

    def answer(errno: int, name: str, *arguments: dict[str, object]) -> dict[str, object]:
        return {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": arguments}

    others = [resource for resource in range(RESOURCES) if resource != CORE]
    refused = [(IOCTL_TYPE, BTRFS_IOCTLS), *((0xFFFF_FFFF, request) for request in TERMINAL_IOCTLS)]
    set_core = (low_half(1, CORE), compare(2, 0, "SCMP_CMP_NE"))
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": UNLISTED_ERRNO,
        "syscalls": [
            {"names": ALLOWED, "action": "SCMP_ACT_ALLOW"},
            allow("clone", low_half(0, 0, NAMESPACE_FLAGS)),
            *(allow("socket", compare(0, family)) for family in SOCKET_FAMILIES),
            *(allow("socketpair", compare(0, family)) for family in PAIR_FAMILIES),
            *(allow("personality", compare(0, value)) for value in PERSONALITIES),
            *(allow("ioctl", low_half(1, value, mask)) for mask, value in _outside(refused)),
            *(allow("ioctl", low_half(1, request)) for request in SHARED_IOCTLS),
            *(answer(REFUSED_ERRNO, "ioctl", low_half(1, request)) for request in TERMINAL_IOCTLS),
            *(allow("setrlimit", low_half(0, resource)) for resource in others),
            *(allow("prlimit64", low_half(1, resource)) for resource in others),
            allow("prlimit64", low_half(1, CORE), compare(2, 0)),
            answer(0, "setrlimit", low_half(0, CORE)),
            answer(0, "prlimit64", *set_core, compare(3, 0)),
            answer(REFUSED_ERRNO, "prlimit64", *set_core, compare(3, 0, "SCMP_CMP_NE")),
            {"names": REFUSED, "action": "SCMP_ACT_ERRNO", "errnoRet": REFUSED_ERRNO},
        ],
    }


def _outside(patterns: list[tuple[int, int]], mask: int = 0, value: int = 0) -> list[tuple[int, int]]:
    """Patterns (mask, value) that every number matches which matches none of `patterns`: rules have no "not equal"."""
    met = [pattern for pattern in patterns if not (pattern[1] ^ value) & pattern[0] & mask]
    if not met:
        return [(mask, value)]
    unknown = met[0][0] & ~mask
    if not unknown:
        return []
    bit = unknown & -unknown
    return [*_outside(met, mask | bit, value), *_outside(met, mask | bit, value | bit)]
