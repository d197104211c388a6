"""The audit: makes two sandboxes, attacks one of them, and says what was denied."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from skerry.audit.attack import carry_out
from skerry.audit.attempt import Attempt, Need, User, Verdict, judge
from skerry.audit.attempts import ATTEMPTS
from skerry.audit.neighbour import answers, planted_in
from skerry.audit.planted import Planted
from skerry.core import Provider, ProviderUnavailable, Resources, SandboxInfo, Unsupported, registry
from skerry.sdk import AsyncSandbox

HERE = frozenset({"local"})
"""The providers whose sandboxes run on this machine."""
LIMITS = Resources(memory=256 << 20, pids=96, disk=64 << 20)
LIFETIME = 1800.0
_LIMITED: tuple[Literal["memory", "pids", "disk"], ...] = ("memory", "pids", "disk")
_OUTSIDE = "change or stop anything outside by all of these"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one attempt of one user came to."""

    attempt: str
    user: str
    came_back: str
    """The errno's name, "not there", how it ended; or why it was not tried."""
    verdict: Verdict
    means: str
    expected: bool = False
    """Whether it was clear from the start that this attempt cannot be made here."""


@dataclass(kw_only=True, slots=True)
class Report:
    """Everything that the audit found."""

    provider: str
    isolation: str
    network: str
    template: str
    findings: list[Finding] = field(default_factory=list)

    def count(self, verdict: Verdict) -> int:
        return sum(finding.verdict is verdict for finding in self.findings)

    @property
    def incomplete(self) -> list[Finding]:
        """Attempts that could not be made although they should have been."""
        return [each for each in self.findings if each.verdict is Verdict.NOT_TRIED and not each.expected]


async def audit(
    provider: str | Provider | None = None,
    *,
    users: Sequence[User] = ("user", "root"),
    network: Literal["none", "open"] = "none",
    template: str | None = None,
    attempts: Sequence[Attempt] = ATTEMPTS,
) -> Report:
    """Attack a new sandbox from inside, as each of the users. Whatever happens, nothing of it is left.

    With the local provider, it marks this machine first: small files in public directories, a process, a variable of
    this process and servers. Raises as `AsyncSandbox.create` does, Unsupported where the sandbox has no python3, and
    ProviderUnavailable where this machine cannot be marked.
    """
    chosen = registry.provider(provider)
    options: dict[str, Any] = {"network": network, "timeout": LIFETIME}
    if template is not None:
        options["template"] = template
    async with AsyncExitStack() as stack:
        missing: dict[Need, str] = {("open" if network == "none" else "none"): f"the network is {network!r}"}
        planted = None
        given: dict[str, Any] = {name: getattr(LIMITS, name) for name in _LIMITED}
        if chosen.name in HERE:
            try:
                planted = stack.enter_context(Planted(open_network=network == "open"))
            except OSError as error:
                raise ProviderUnavailable(
                    f"the audit cannot plant its marks on this machine: {error}", hint="run it as root"
                ) from error
            given |= planted.given
        else:
            missing["host"] = f"nothing can be planted on the machine of the provider {chosen.name!r}"
        neighbour = await stack.enter_async_context(await AsyncSandbox.create(chosen, **options))
        await _require_python(neighbour)
        given["neighbour"] = await stack.enter_async_context(planted_in(neighbour))
        target, refused = await _limited(chosen, options)
        await stack.enter_async_context(target)
        missing |= refused
        info = await target.info()
        report = Report(provider=chosen.name, isolation=info.isolation, network=info.network, template=_template(info))
        attack = _Attack(target, info.user, neighbour, planted, given, missing)
        if info.user in ("root", "0"):  # the template has no other user
            users = ("root",)
        for user in users:
            report.findings += [finding async for finding in attack.findings(attempts, user)]
        order = [attempt.name for attempt in attempts] + [_OUTSIDE]
        report.findings.sort(key=lambda finding: order.index(finding.attempt))
        return report


def _template(info: SandboxInfo) -> str:
    return info.template.partition("@")[0]


async def _require_python(sandbox: AsyncSandbox) -> None:
    if (await sandbox.exec("command -v python3", timeout=30)).exit_code != 0:
        template = _template(await sandbox.info())
        raise Unsupported(
            f"a sandbox of the template {template!r} has no python3, which the audit attacks with",
            option="template",
            hint="choose a template that has it, such as --template debian",
        )


async def _limited(provider: Provider, options: dict[str, Any]) -> tuple[AsyncSandbox, dict[Need, str]]:
    """A sandbox with as many of the limits as can be had, and why the others cannot."""
    wanted, refused = LIMITS, dict[Need, str]()
    while True:
        try:
            return await AsyncSandbox.create(provider, resources=wanted, **options), refused
        except Unsupported as error:
            found = [name for name in _LIMITED if name == error.option.rpartition(".")[2] and name not in refused]
            if not found:
                raise
            wanted = dataclasses.replace(wanted, **{found[0]: None})
            refused[found[0]] = error.message


@dataclass(frozen=True, slots=True)
class _Attack:
    target: AsyncSandbox
    name: str
    """What the sandbox's user is called."""
    neighbour: AsyncSandbox
    planted: Planted | None
    given: dict[str, Any]
    missing: dict[Need, str]
    """What cannot be had here, and why."""

    async def findings(self, attempts: Sequence[Attempt], user: User) -> AsyncIterator[Finding]:
        waiting = []
        for attempt in attempts:
            reasons = [self.missing[need] for need in sorted(attempt.needs) if need in self.missing]
            if user not in attempt.users:
                continue
            if reasons:
                yield _finding(attempt, user, reasons[0], Verdict.NOT_TRIED, expected=True)
            else:
                waiting.append(attempt)
        while waiting:
            async for attempt, answer in carry_out(
                self.target, waiting, self.name if user == "user" else user, self.given
            ):
                waiting.remove(attempt)
                if answer is not None:
                    came_back, verdict = answer.text, judge(attempt, answer)
                    if verdict is Verdict.ALLOWED and attempt.on_host and not self._changed():
                        came_back, verdict = "done to its own files only", Verdict.DENIED
                    yield _finding(attempt, user, came_back, verdict)
                elif await answers(self.target):
                    yield _finding(attempt, user, "the attack program ended with it", Verdict.NOT_TRIED)
                else:
                    yield _finding(attempt, user, "the sandbox ended with it", Verdict.ALLOWED)
                    for left in waiting:
                        yield _finding(left, user, "the sandbox has ended", Verdict.NOT_TRIED)
                    return
        yield await self._outside(user)

    def _changed(self) -> bool:
        return self.planted is not None and bool(self.planted.changes())

    async def _outside(self, user: User) -> Finding:
        """Whether all that is outside of the sandbox still is as it was."""
        found = [] if self.planted is None else self.planted.changes()
        if not await answers(self.neighbour):
            found.append("another sandbox answers no more")
        return Finding(
            attempt=_OUTSIDE,
            user=user,
            came_back=", ".join(found) or "nothing has changed",
            verdict=Verdict.ALLOWED if found else Verdict.DENIED,
            means="Code inside changes or stops what is outside of its sandbox.",
        )


def _finding(attempt: Attempt, user: str, came_back: str, verdict: Verdict, *, expected: bool = False) -> Finding:
    return Finding(
        attempt=attempt.name,
        user=user,
        came_back=came_back,
        verdict=verdict,
        means=attempt.means,
        expected=expected,
    )
