"""The compiled filter decides as the policy says, for every call there is; what it does in a sandbox is in tests/isolation."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

import pyseccomp
import pytest

from skerry.providers.local import host
from skerry.providers.local.launch import seccomp
from tools.gen_seccomp import ALLOW, AUDIT_ARCH, ERRNO

ARCH = AUDIT_ARCH[platform.machine()]
UNLISTED, REFUSED = ERRNO | seccomp.UNLISTED_ERRNO, ERRNO | seccomp.REFUSED_ERRNO


def run(number: int, argument: int = 0, arch: int = ARCH, *, second: int = 0, third: int = 0, fourth: int = 0) -> int:
    """Interpret the filter as the kernel would."""
    program = list(struct.iter_unpack("HBBI", Path(host.binary("seccomp.bpf")).read_bytes()))
    data = struct.pack("<IIQQQQQ", number, arch, 0, argument, second, third, fourth)
    accumulator, position = 0, 0
    while True:
        code, yes, no, value = program[position]
        position += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif code == 0x54:
            accumulator &= value
        elif code in (0x15, 0x35, 0x45):
            met = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            position += yes if met else no
        else:
            raise AssertionError(code)


def number_of(name: str) -> int:
    return int(pyseccomp.resolve_syscall(pyseccomp.system_arch(), name))


def test_every_call_is_answered_as_the_policy_says() -> None:
    wanted = {number_of(name): REFUSED for name in seccomp.REFUSED}
    wanted |= {number_of(name): ALLOW for name in seccomp.ALLOWED}
    looked_at = "clone socket socketpair personality ioctl setrlimit prlimit64".split()
    checked = {number_of(name) for name in looked_at}
    for number in set(range(1024)) - checked:
        assert run(number) == wanted.get(number, UNLISTED), number


@pytest.mark.parametrize("number", [0x4000_0000, 0x4000_0001, 0xFFFF_FFFF, 100_000])
def test_numbers_beyond_all_calls_do_not_exist(number: int) -> None:
    assert run(number) == UNLISTED


def test_another_architecture_s_calls_do_not_exist() -> None:
    assert run(number_of("read")) == ALLOW
    assert run(number_of("read"), arch=0x4000_0003) == UNLISTED


def test_arguments_are_looked_at() -> None:
    assert run(number_of("clone"), 17) == ALLOW
    for shift in (17, 25, 26, 27, 28, 29, 30):
        assert run(number_of("clone"), 17 | 1 << shift) == UNLISTED
    for family in range(50):
        assert run(number_of("socket"), family) == (ALLOW if family in seccomp.SOCKET_FAMILIES else UNLISTED)
        assert run(number_of("socketpair"), family) == (ALLOW if family == 1 else UNLISTED)
    assert run(number_of("personality"), 0xFFFF_FFFF) == ALLOW
    assert run(number_of("personality"), 0x0040_0000) == UNLISTED
    assert number_of("clone3") not in {number_of(name) for name in seccomp.ALLOWED}


def test_btrfs_s_own_requests_are_refused_and_no_others() -> None:
    ioctl = number_of("ioctl")
    for number in range(256):
        for head in (0x0000_9400, 0x5000_9400, 0xD000_9400, 0xFFFF_FFFF_5000_9400, 0x1_0000_9400):
            request = head | number
            shared = request & 0xFFFF_FFFF in seccomp.SHARED_IOCTLS
            assert run(ioctl, second=request) == (ALLOW if shared else REFUSED), hex(request)
    for request in (*seccomp.SHARED_IOCTLS, 0xFFFF_FFFF_C018_9436, *(kind << 8 for kind in range(256) if kind != 0x94)):
        assert run(ioctl, second=request) == ALLOW, hex(request)


def test_requests_that_type_into_a_terminal_are_refused_and_no_others() -> None:
    ioctl = number_of("ioctl")
    for request in range(0x5400, 0x5500):
        typing = request in (0x5412, 0x541C)
        assert run(ioctl, second=request) == (REFUSED if typing else ALLOW), hex(request)
        assert run(ioctl, second=0xFFFF_FFFF_0000_0000 | request) == (REFUSED if typing else ALLOW), hex(request)
        assert run(ioctl, second=0x8000_0000 | request) == ALLOW, hex(request)


PRETENDED = ERRNO
POINTERS = (1, 0x7FFF_0000_0000, 0x1_0000_0000, 0xFFFF_FFFF_0000_0000)


def test_the_core_limit_is_read_and_never_set() -> None:
    for resource in range(20):
        core = resource == 4
        for head in (0, 0xABCD_0000_0000):  # the kernel takes an unsigned int
            assert run(number_of("setrlimit"), head | resource) == (PRETENDED if core else ALLOW)
            call = number_of("prlimit64")
            assert run(call, second=head | resource) == ALLOW
            for pointer in POINTERS:
                assert run(call, second=head | resource, fourth=pointer) == ALLOW
                assert run(call, second=head | resource, third=pointer) == (PRETENDED if core else ALLOW)
                both = run(call, second=head | resource, third=pointer, fourth=pointer)
                assert both == (REFUSED if core else ALLOW)


def test_the_rules_for_other_runtimes_say_the_same_of_ioctl() -> None:
    rules = [rule for rule in seccomp.oci_rules()["syscalls"] if "ioctl" in rule["names"]]  # type: ignore[attr-defined]
    rules = [rule for rule in rules if rule["action"] == "SCMP_ACT_ALLOW"]

    def allowed(request: int) -> bool:
        compared = [argument for rule in rules for argument in rule["args"]]
        return any(request & each["value"] == each["valueTwo"] for each in compared)

    for request in (
        0x5401,
        0x5413,
        0x8000_5412,
        0x5410,
        0x541D,
        0x9509,
        0x1409,
        0xB409,
        *seccomp.SHARED_IOCTLS,
        0xFFFF_FFFF_C018_9436,
    ):
        assert allowed(request), hex(request)
    for request in (0x5412, 0x541C, 0xFFFF_FFFF_0000_5412, 0x5000_940E, 0x5000_9417, 0x9409, 0x5000_943F, 0xD000_9411):
        assert not allowed(request), hex(request)
