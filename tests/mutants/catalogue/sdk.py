"""Breakages of the wire and of the SDK."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SDK = [
    # -- wire, Python
    Mutant(
        "a frame above the limit is taken",
        "src/skerry/wire/frames.py",
        "    if length > MAX_PAYLOAD:\n        raise",
        "    if length > 2 * MAX_PAYLOAD:\n        raise",
        "tests/wire/test_frames.py::test_a_length_above_the_limit_is_refused_before_any_payload",
    ),
    # -- SDK
    Mutant(
        "an exit without a code is a success",
        "src/skerry/sdk/commands/exchange.py",
        "            sound = code is not None and 0 <= code <= 255 and signal is None",
        "            sound = code is None or 0 <= code <= 255",
        "tests/sdk/connection/test_hostile_agent.py::test_exec_ends_with_corrupted_after",
    ),
    Mutant(
        "more data than was granted is taken",
        "src/skerry/sdk/connection/stream.py",
        "        if size > flow.credit:\n",
        "        if size > 1 << 40:\n",
        "tests/sdk/connection/test_hostile_agent.py::test_exec_ends_with_corrupted_after",
    ),
    Mutant(
        "the dropped middle of the output is not counted",
        "src/skerry/sdk/commands/output.py",
        "        return self._skipped + self.total - len(self._head) - min(len(self._tail), self._tail_limit)",
        "        return 0",
        "tests/sdk/commands/test_output.py::test_the_first_and_the_last_bytes_are_kept_and_the_rest_counted",
    ),
    Mutant(
        "credit is given before the bytes are used",
        "src/skerry/sdk/connection/stream.py",
        "        flow.offset, flow.ended = offset + size, end\n        flow.credit -= size\n",
        "        flow.offset, flow.ended = offset + size, end\n        self.session.queue(credit_frame(self.id, channel, size), soon=True)\n",
        "tests/sdk/connection/test_session.py::test_a_stream_nobody_reads_gives_no_credit",
    ),
    Mutant(
        "cancelling leaves the command running",
        "src/skerry/sdk/connection/stream.py",
        "            self.session.close_stream(self.id)\n            self._finish()\n",
        "            self._finish()\n",
        "tests/sdk/connection/test_session.py::test_cancelling_exec_closes_the_stream_at_once",
    ),
    Mutant(
        "an option without a feature is ignored",
        "src/skerry/sdk/create.py",
        '        if given.get(name) is not None:\n            raise Unsupported(f"{name} is not supported yet", option=name)\n',
        "        pass\n",
        "tests/sdk/test_options.py::test_an_option_without_a_feature_is_unsupported",
    ),
]
