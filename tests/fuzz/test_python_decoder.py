"""Runs the fuzzer on the seeds for FUZZ_SECONDS (3)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.wire import Attach, Decoder, Exit, Hello, ProcessEntry, Start, Type, credit_frame, data_frame, encode_frame

ROOT = Path(__file__).resolve().parents[2]
SECONDS = int(os.environ.get("FUZZ_SECONDS", "3"))


def make_seeds(directory: Path) -> None:
    """The agent's seeds, and some of ours; the byte in front says how the input is cut."""
    shared = ROOT / "agent/fuzz/corpus"
    for seed in shared.iterdir() if shared.is_dir() else ():
        (directory / f"agent-{seed.name}").write_bytes(b"\xff" + seed.read_bytes())
    started = Start(argv=(b"sh", b"-c", b"x"), env=(b"A=b",), cwd=b"/", user="root", timeout_ms=5, flags=3)
    entry = ProcessEntry(id=1, pid=2, started_ms=3, argv=(b"x",), status="running", stdout_bytes=4, stderr_bytes=5)
    ended = Exit(exit_code=0, status="exited", duration_us=1, stdout_bytes=2, stderr_bytes=3)
    own = {
        "start": encode_frame(1, Type.START, started.encode()),
        "attach": encode_frame(2, Type.ATTACH, Attach(id=1).encode()),
        "hello": encode_frame(0, Type.HELLO, Hello(generation=1, token=b"t").encode()),
        "entry": encode_frame(3, Type.REPLY, entry.encode()),
        "exit": encode_frame(3, Type.REPLY, ended.encode(), 0x80),
        "data": data_frame(1, 1, 0, b"hello") + credit_frame(1, 1, 5),
    }
    for name, data in own.items():
        (directory / name).write_bytes(b"\x05" + data)


@pytest.mark.may_skip
@pytest.mark.timeout(SECONDS + 110)
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed: make setup")
def test_the_decoder_survives_coverage_guided_fuzzing(tmp_path: Path) -> None:
    seeds = tmp_path / "corpus"
    seeds.mkdir()
    make_seeds(seeds)
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "tests/fuzz/fuzz_python_decoder.py",
            f"-max_total_time={SECONDS}",
            "-rss_limit_mb=4096",  # a process begins with the peak of the one that started it, which ran many tests
            f"-artifact_prefix={tmp_path}/",
            str(seeds),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done" in done.stderr, done.stderr[-4000:]


def test_our_seeds_are_whole_frames(tmp_path: Path) -> None:
    make_seeds(tmp_path)
    own = [path for path in tmp_path.iterdir() if not path.name.startswith("agent-")]
    assert len(own) == 6
    for path in own:
        decoder = Decoder()
        assert list(decoder.feed(path.read_bytes()[1:]))
        assert decoder.pending == 0
