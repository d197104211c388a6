"""The command `conformance`: whether a provider keeps the contract."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from skerry.cli import options
from skerry.cli.options import Format
from skerry.cli.provider_option import find_provider
from skerry.cli.terminal.output import note, print_error, print_json, print_table

MARKS = {"passed": ".", "failed": "F", "not offered": "-"}


def conformance(
    provider: Annotated[
        str,
        typer.Option("--provider", metavar="NAME", help="Test an installed provider, or another one as module:Class."),
    ] = "local",
    only: Annotated[str | None, typer.Option("--only", metavar="CLASS", help="Run one class of cases.")] = None,
    network: Annotated[
        options.Network | None, typer.Option("--network", help="Create all sandboxes with this network.")
    ] = None,
    output: options.Output = Format.TEXT,
) -> None:
    """Show whether a provider keeps the contract.

    Runs the conformance suite with real sandboxes. A case that needs a feature the provider does not offer
    neither passes nor fails. Exits with 1 if a case failed. Needs pytest.

    \b
    Example:
      skerry conformance --provider local --only exec
    """
    from skerry.core import SkerryError

    try:
        from skerry.testing import run_suite
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        from skerry.cli.extras import install_line

        hint = install_line("testing")
        print_error("the conformance suite needs pytest", "PROVIDER_UNAVAILABLE", hint, output=output)
        raise SystemExit(1) from None
    try:
        settings = {} if network is None else {"network": network.value}
        outcomes = run_suite(find_provider(provider), only=only, options=settings, on_case=_Progress())
    except SkerryError as error:
        print_error(error.message, error.code, error.hint, output=output)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    note("")
    failed = sum(outcome.failed for outcome in outcomes)
    if output is Format.JSON:
        print_json({"provider": provider, "classes": outcomes, "failed": failed})
        raise SystemExit(1 if failed else 0)
    for outcome in outcomes:
        for case, text in outcome.failures.items():
            for line in ("", f"{outcome.suite}: {case}", *text.split("\n")):
                note(line)
    headers = ("CLASS", "CASES", "PASSED", "FAILED", "NOT OFFERED")
    rows = [(o.suite, *map(str, (o.cases, o.passed, o.failed, o.not_offered))) for o in outcomes]
    total = [sum(int(row[column]) for row in rows) for column in range(1, 5)]
    print_table(headers, [*rows, ("all", *map(str, total))], right=headers[1:])
    raise SystemExit(1 if failed else 0)


class _Progress:
    """A character for each case on stderr, a line for each class."""

    def __init__(self) -> None:
        self._suite = ""

    def __call__(self, suite: str, case: str, outcome: str) -> None:
        if suite != self._suite:
            start = "\n" if self._suite else ""
            self._suite = suite
            self._write(f"{start}{suite.removeprefix('Test').removesuffix('Conformance').lower():12} ")
        self._write(MARKS[outcome])

    def _write(self, text: str) -> None:
        print(text, end="", file=sys.__stderr__, flush=True)
