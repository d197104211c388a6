"""The command `audit`: what a sandbox denies to those who attack it from inside."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.options import Format, Network
from skerry.cli.provider_option import find_provider
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import note, print_json, print_table, say

if TYPE_CHECKING:
    from skerry.audit import Finding, Report

INCOMPLETE = 3
"""The audit could not run, or not all of it."""


class As(StrEnum):
    USER = "user"
    ROOT = "root"
    BOTH = "both"


def audit(
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            metavar="NAME",
            help="Attack a sandbox of this provider, installed or given as module:Class; without it, of your default.",
        ),
    ] = None,
    user: Annotated[As, typer.Option("--as", help="Attack as this user of the sandbox.")] = As.BOTH,
    network: options.NetworkOption = Network.NONE,
    template: options.Template = None,
    output: options.Output = Format.TEXT,
) -> None:
    """Attack a new sandbox from inside and show what was denied.

    Makes two sandboxes, runs more than a hundred attempts in one of them, as its user and as its root, to reach the
    machine, the other sandbox, the network and the agent, and removes both. No attempt does harm where it is allowed.
    With the local provider, the audit marks this machine before, with small files, a process and servers, so that
    there is something to find, and removes the marks.

    Exits with 0 if everything was denied, with 1 if anything was ALLOWED, and with 3 if the audit, or an attempt that
    should be possible here, could not run.

    \b
    Example:
      skerry audit --as root --network open
    """

    async def work() -> int:
        from skerry.audit import Verdict
        from skerry.audit import audit as attack

        chosen = None if provider is None else find_provider(provider)
        users = ("user", "root") if user is As.BOTH else (user.value,)
        found = await attack(chosen, users=users, network=network.value, template=template)  # type: ignore[arg-type]
        if output is Format.JSON:
            counts = {verdict.lower().replace(" ", "_"): found.count(verdict) for verdict in Verdict}
            print_json({**counts, "incomplete": len(found.incomplete), "report": found})
        else:
            _show(found)
        return 1 if found.count(Verdict.ALLOWED) else INCOMPLETE if found.incomplete else 0

    if output is Format.TEXT:
        note("attacking a sandbox from inside; this takes some seconds")
    execute(work, output=output, failure=INCOMPLETE)


def _show(report: Report) -> None:
    from skerry.audit import Verdict

    rows: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in report.findings:
        rows.setdefault((finding.attempt, finding.verdict, finding.came_back), []).append(finding)
    print_table(
        ("VERDICT", "AS", "ATTEMPT", "CAME BACK", "IF IT HAD WORKED"),
        [
            (verdict, ", ".join(each.user for each in found), attempt, came_back, found[0].means)
            for (attempt, verdict, came_back), found in rows.items()
        ],
    )
    left_out = sum(finding.expected for finding in report.findings)
    say(
        "",
        f"{report.count(Verdict.DENIED)} attempts were denied, {report.count(Verdict.ALLOWED)} were ALLOWED, "
        f"{len(report.incomplete)} could not be tried, {left_out} do not apply here",
        f"isolation: {report.isolation} (provider {report.provider}, template {report.template}, "
        f"network {report.network})",
        "not covered: holes in the kernel, side channels, and what the security model names as not protected",
        "             (docs/design/security.md)",
    )
