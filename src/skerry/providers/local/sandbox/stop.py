"""Ends a sandbox's processes in order: its agent leaves the variables first.

If the process dies during a stop, the next command finishes it. The caller holds the lock.
"""

from __future__ import annotations

import dataclasses

from skerry.core import SkerryError, State
from skerry.providers.local.launch import agent_call
from skerry.providers.local.sandbox import last_words
from skerry.providers.local.sandbox.changes import Changes, Recoveries
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.steps import Exit, Steps, complete
from skerry.wire import Life, LifeReply

ANSWER_TIMEOUT = 10.0
"""Seconds that an agent may take to say that it will end."""
EXIT_MARGIN = 5.0
"""Seconds that it may then take beyond the grace."""
WORDS_MARGIN = 1.0
"""Seconds that an agent that is ending by itself may take to leave its last words."""


class Stop:
    """Stops sandboxes; also for changes that begin with a stop."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def recoveries(self) -> Recoveries:
        return {"stop": self._finish}

    def stopping(self, record: Record, grace: float) -> Steps[Record]:
        """Let the sandbox's processes end within `grace` seconds, kill the rest; waits for them between two steps."""
        if record.state is State.STOPPED:
            return record
        record = yield from self.ending(self._changes.begin(record, "stop", state=State.STOPPING), grace)
        return self.settle(record, State.STOPPED, "stopped")

    def ending(self, record: Record, grace: float) -> Steps[Record]:
        """End the processes through the agent, which alone knows the variables; the caller has noted the change."""
        changes = self._changes
        if record.init is None or not record.alive:
            return self.halt(record)
        changes.cgroups.thaw(record.id)
        message = Life(end=1, grace_ms=round(grace * 1000))
        try:
            agent_call.request(
                changes.socket(record.id), bytes.fromhex(record.token), message, LifeReply, timeout=ANSWER_TIMEOUT
            )
            seconds = grace + EXIT_MARGIN
        except SkerryError:
            seconds = WORDS_MARGIN  # it is ending by itself, or it hangs and is killed
        yield Exit(record.init, seconds)
        return self.halt(record)

    def end(self, record: Record) -> Record:
        """The same at once, in this thread, without a grace."""
        return complete(self.ending(record, 0.0))

    def halt(self, record: Record) -> Record:
        """Make sure that no process is left; the record says since when, and what the variables were."""
        changes = self._changes
        if record.slot is None:  # the process that started it may have died before it noted the slot
            record = dataclasses.replace(record, slot=changes.store.slot_of(record.id))
        # If the record no longer has the agent, its words were read when it was ended.
        words = None if record.init is None else changes.words(record.id)
        return last_words.stopped(changes.halt(last_words.with_variables(record, words)), words)

    def settle(self, record: Record, state: State, *events: str) -> Record:
        """Note that the change is complete, and remove the last words; if they stay, the next start clears them."""
        record = self._changes.finish(record, state, *events)
        if state is not State.PAUSED and state is not State.RUNNING:
            self._changes.remove_words(record.id)
        return record

    def _finish(self, record: Record) -> Record:
        record = self._changes.advance(self.end(record), State.STOPPED)
        why = record.pending_data.get("why")
        self._changes.log(record, "stopped", at=record.stopped_at, data={"reason": why} if why else None)
        return record
