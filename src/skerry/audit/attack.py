"""Carries out attempts in a sandbox, and reads what came back from each."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skerry.audit.attempt import Answer, Attempt
from skerry.core import SkerryError
from skerry.sdk import AsyncSandbox

PROGRAM = ["python3", "-I", "-c", Path(__file__).with_name("inside.py").read_text()]


def message(attempts: Iterable[Attempt], given: Mapping[str, Any]) -> str:
    """What the attack program reads."""
    bodies = [{"name": each.name, "body": each.body, "seconds": each.seconds} for each in attempts]
    return json.dumps({"attempts": bodies, "given": given})


async def carry_out(
    sandbox: AsyncSandbox, attempts: Sequence[Attempt], user: str, given: Mapping[str, Any]
) -> AsyncIterator[tuple[Attempt, Answer | None]]:
    """Each attempt with its answer, as they come; None: the attack program ended with this attempt, and told nothing.

    What follows that attempt is not carried out.
    """
    waiting = list(attempts)
    named = ""
    try:
        stream = sandbox.exec_stream(PROGRAM, user=user, stdin=message(attempts, given), timeout=900)
        async with stream:
            async for line in stream.lines():
                said = json.loads(line)
                if isinstance(said, str):
                    named = said
                    continue
                assert named == waiting[0].name
                yield waiting.pop(0), Answer(*said)
    except SkerryError:
        if not waiting or named != waiting[0].name:
            raise
    if waiting:
        yield waiting[0], None
