"""An attempt to get out of a sandbox, as data; what came back from it; and what that says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

User = Literal["user", "root"]
Need = Literal["host", "neighbour", "none", "open", "memory", "pids", "disk"]
"""What an attempt is about: something planted on this machine or in a second sandbox, a network, a limit in force."""
How = Literal["error", "no effect", "returned", "silent", "killed", "not tried", "stuck", "broken"]
"""What the attack program tells: an errno, that the call changed nothing, a result, no answer from the network,
a signal, a reason why it could not try, no end in time, another exception."""

REFUSED = frozenset({"EPERM", "EACCES", "EROFS", "ENOSYS"})
"""What a kernel answers that does not let a process do something. Other errors say that the arguments were wrong."""
HIDDEN = REFUSED | {"ENOENT", "ENOTDIR", "ENXIO", "ENODEV", "ESRCH", "ENODATA"}
"""And what it answers about something that is not there; ENODATA: it is there and empty."""
UNREACHABLE = REFUSED | {"ENETUNREACH", "EHOSTUNREACH", "ENETDOWN", "EADDRNOTAVAIL", "EAFNOSUPPORT"}
"""And about an address that nothing leads to."""
EXHAUSTED = frozenset({"EAGAIN", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EDQUOT"})
"""What it answers where a limit is reached."""
WORDS = {"ENOENT": "not there", "ENODATA": "empty", "ESRCH": "no such process"}


class Verdict(StrEnum):
    DENIED = "denied"
    ALLOWED = "ALLOWED"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """`body` is that of a Python function in `inside.py`: what it returns is what the attacker got."""

    name: str
    means: str
    """What it would have meant if it had worked, as a sentence."""
    body: str
    users: tuple[User, ...] = ("user", "root")
    denied: frozenset[str] = REFUSED
    """The errors that say no."""
    agreed: frozenset[str] = frozenset()
    """The errors that come only after the kernel has said yes: the attempt is made to fail then, harmlessly."""
    needs: frozenset[Need] = frozenset()
    silence: bool = False
    """Whether no answer is a denial: the address is known to answer."""
    kill: bool = False
    """Whether a SIGKILL is a denial, as that of the kernel where memory runs out."""
    on_host: bool = False
    """Whether a result counts only if this machine has changed: the sandbox may do it to its own files."""
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    how: How
    what: str

    @property
    def text(self) -> str:
        if self.how == "error":
            return f"{WORDS[self.what]} ({self.what})" if self.what in WORDS else self.what
        return f"killed by {self.what}" if self.how == "killed" else self.what or self.how


def judge(attempt: Attempt, answer: Answer) -> Verdict:
    """What an answer says. An answer that proves nothing is not a denial."""
    denied = {
        "error": answer.what in attempt.denied,
        "no effect": True,
        "silent": attempt.silence,
        "killed": answer.what == "SIGSYS" or (attempt.kill and answer.what == "SIGKILL"),
    }
    if denied.get(answer.how):
        return Verdict.DENIED
    if answer.how == "returned" or (answer.how == "error" and answer.what in attempt.agreed):
        return Verdict.ALLOWED
    return Verdict.NOT_TRIED
