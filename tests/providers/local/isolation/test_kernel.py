"""Attacks on the kernel's interfaces: none of them may succeed, whoever makes them. `skerry audit` makes the same."""

from __future__ import annotations

import pytest

from skerry.audit.attempt import Attempt
from skerry.audit.attempts import AGENT, CALLS, KERNEL_FILES, RIGHTS
from tests.providers.local.isolation.conftest import Attack

ATTEMPTS = {attempt.name: attempt for attempt in (*CALLS, *KERNEL_FILES, *RIGHTS, *AGENT)}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_what_the_kernel_offers_is_denied(attack: Attack, attacker: str, attempt: Attempt) -> None:
    if attacker in attempt.users:
        attack(attempt)


@pytest.mark.parametrize("family", [2, 10, 16, 17, 30, 38, 40, 44])
def test_a_pair_of_sockets_of_another_family_than_unix_is_not_even_made(attack: Attack, family: int) -> None:
    """The kernel's own refusal comes after it has made two of them, and loaded the family's module."""
    for kind in (1, 2, 3, 5):
        assert attack(f'return syscall("socketpair", {family}, {kind}, 0, buffer(8))') == "ENOSYS"


def test_requests_of_asynchronous_files_do_not_exist(attack: Attack) -> None:
    """The kernel counts their queues for the whole machine."""
    assert attack(ATTEMPTS["queue asynchronous file requests"]) == "ENOSYS"


@pytest.mark.parametrize("call", ["TIOCSTI", "TIOCLINUX"])
def test_a_program_cannot_type_into_its_terminal_whatever_the_kernel_would_say(attack: Attack, call: str) -> None:
    assert attack(ATTEMPTS[f"type into its terminal ({call})"]) == "EPERM"


HARMFUL = {
    "unmount /usr": 'return syscall("umount2", b"/usr", 2)',
    "unmount /proc/sys": 'return syscall("umount2", b"/proc/sys", 2)',
    "move /usr": 'return syscall("move_mount", -100, b"/usr", -100, b"/mnt", 0)',
}
"""Some that would do harm where they are allowed, and that the audit makes in another way."""


@pytest.mark.parametrize("what", HARMFUL)
def test_a_harmful_call_is_refused(attack: Attack, what: str) -> None:
    assert attack(HARMFUL[what]) == "EPERM"


def test_files_of_a_machine_are_not_behind_the_root(attack: Attack) -> None:
    """Where process 1 has its root, and after a chroot that was left."""
    attack('return open("/proc/1/root/etc/machine-id").read()')
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
