"""Compiles the system call filter of the local provider for this machine's architecture.

python tools/gen_seccomp.py OUT

The kernel checks and compiles the filter again for every sandbox, so a smaller filter is faster. A search over ranges
of allowed calls has a third of the instructions that libseccomp makes of the same list, which saves half a
millisecond. libseccomp provides the numbers of the calls.
"""

from __future__ import annotations

import importlib.util
import platform
import struct
import sys
from pathlib import Path
from types import ModuleType

import pyseccomp

POLICY = Path(__file__).parents[1] / "src/skerry/providers/local/launch/seccomp.py"

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
LOAD, AND, GREATER_EQUAL, EQUAL, ANY_BIT, RETURN = 0x20, 0x54, 0x35, 0x15, 0x45, 0x06
NUMBER, ARCH, FIRST_ARGUMENT, SECOND_ARGUMENT, THIRD_ARGUMENT, FOURTH_ARGUMENT = 0, 4, 16, 24, 32, 40
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
X32 = 0x4000_0000
"""Calls of the x32 mode start here; a sandbox may make none of them."""

Instruction = tuple[int, int, int, int]


def load_policy() -> ModuleType:
    """The policy module by itself, so that building does not need the package installed."""
    spec = importlib.util.spec_from_file_location("policy", POLICY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(names: list[str]) -> set[int]:
    """The numbers of the calls that this architecture and libseccomp know; any other call is as good as unlisted."""
    found = (pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) for name in names)
    return {number for number in found if number >= 0}


def answer(action: int) -> list[Instruction]:
    return [(RETURN, 0, 0, action)]


def one_of(values: tuple[int, ...], otherwise: int) -> list[Instruction]:
    """Allow a call whose first argument, an int to the kernel, is one of `values`."""
    tests = [(EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [(LOAD, 0, 0, FIRST_ARGUMENT), *tests, *answer(otherwise), *answer(ALLOW)]


def without_bits(bits: int, otherwise: int) -> list[Instruction]:
    return [(LOAD, 0, 0, FIRST_ARGUMENT), (ANY_BIT, 1, 0, bits), *answer(ALLOW), *answer(otherwise)]


def not_of_type(
    mask: int, kind: int, exceptions: tuple[int, ...], others: tuple[int, ...], otherwise: int
) -> list[Instruction]:
    """Allow a call whose second argument, an int to the kernel, is not of a kind, or is one of `exceptions`, and is
    none of `others`."""
    tests = [(EQUAL, len(exceptions) - index, 0, value) for index, value in enumerate(exceptions)]
    end = [(LOAD, 0, 0, SECOND_ARGUMENT), *tests, *answer(otherwise), *answer(ALLOW)]
    kinds = [(AND, 0, 0, mask), (EQUAL, 0, len(end) - 1, kind), *end]
    refusal = len(kinds) - 2
    first = [(EQUAL, refusal + len(others) - 1 - index, 0, value) for index, value in enumerate(others)]
    return [(LOAD, 0, 0, SECOND_ARGUMENT), *first, *kinds]


def setting(resource: int, then: int) -> list[Instruction]:
    """setrlimit: `then` for this resource."""
    return [(LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 1, 0, resource), *answer(ALLOW), *answer(then)]


def setting_or_reading(resource: int, then: int, otherwise: int) -> list[Instruction]:
    """prlimit: `then` for a new value of this resource, and `otherwise` for one that asks for the old value too."""
    return [
        (LOAD, 0, 0, SECOND_ARGUMENT),
        (EQUAL, 0, 10, resource),
        (LOAD, 0, 0, THIRD_ARGUMENT),  # a pointer: both halves count
        (EQUAL, 0, 2, 0),
        (LOAD, 0, 0, THIRD_ARGUMENT + 4),
        (EQUAL, 6, 0, 0),
        (LOAD, 0, 0, FOURTH_ARGUMENT),
        (EQUAL, 0, 3, 0),
        (LOAD, 0, 0, FOURTH_ARGUMENT + 4),
        (EQUAL, 0, 1, 0),
        *answer(then),
        *answer(otherwise),
        *answer(ALLOW),
    ]


def search(ranges: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Binary search over ranges, each with its first number and what to do with it."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    left, right = search(ranges[:middle]), search(ranges[middle:])
    assert len(left) < 256
    return [(GREATER_EQUAL, len(left), 0, ranges[middle][0]), *left, *right]


def build(policy: ModuleType) -> list[Instruction]:
    unlisted, refused = ERRNO | policy.UNLISTED_ERRNO, ERRNO | policy.REFUSED_ERRNO
    pretended = ERRNO | 0  # the kernel does nothing, and reports success
    ioctl = not_of_type(policy.IOCTL_TYPE, policy.BTRFS_IOCTLS, policy.SHARED_IOCTLS, policy.TERMINAL_IOCTLS, refused)
    actions = dict.fromkeys(numbers(policy.REFUSED), answer(refused))
    actions |= dict.fromkeys(numbers(policy.ALLOWED), answer(ALLOW))
    for name, block in (
        ("clone", without_bits(policy.NAMESPACE_FLAGS, unlisted)),
        ("socket", one_of(policy.SOCKET_FAMILIES, unlisted)),
        ("socketpair", one_of(policy.PAIR_FAMILIES, unlisted)),
        ("personality", one_of(policy.PERSONALITIES, unlisted)),
        ("ioctl", ioctl),
        ("setrlimit", setting(policy.CORE, pretended)),
        ("prlimit64", setting_or_reading(policy.CORE, pretended, refused)),
    ):
        actions |= dict.fromkeys(numbers([name]), block)
    ranges: list[tuple[int, list[Instruction]]] = []
    for number in range(max(actions) + 2):
        action = actions.get(number, answer(unlisted))
        if not ranges or ranges[-1][1] != action:
            ranges.append((number, action))
    assert max(actions) < X32
    return [
        (LOAD, 0, 0, ARCH),
        (EQUAL, 1, 0, AUDIT_ARCH[platform.machine()]),
        *answer(unlisted),
        (LOAD, 0, 0, NUMBER),
        *search(ranges),
    ]


def main() -> int:
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    program = build(load_policy())
    out.write_bytes(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    print(f"{out}: {len(program)} instructions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
