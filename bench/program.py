"""How quickly the program starts, and a large file moves: `python bench/program.py [--quick]`.

The commands run in one loop with `python -c pass`; a file of 512 MB goes up and down beside `dd` in the same sandbox.
Goals that are missed are named; only a command or a transfer that fails exits with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.stats import percentile
from bench.workspace import workspace
from skerry.sdk import AsyncSandbox

RESULTS = Path(__file__).resolve().parent / "results"
SKERRY = str(Path(sys.executable).with_name("skerry"))
EMPTY = "python -c pass"
COMMANDS = {
    EMPTY: [sys.executable, "-c", "pass"],
    "skerry --help": [SKERRY, "--help"],
    "skerry run -- true": [SKERRY, "run", "--", "true"],
    "skerry ps": [SKERRY, "ps"],
}
GOALS = {"skerry --help": 6.0, "skerry run -- true": 12.0, "skerry ps": 10.0}
"""At most this many times as long as an empty Python program."""
SIZE = 512 * 1024 * 1024
TRANSFER = 0.6
"""At least this share of the speed of `dd` in the sandbox."""


def start(command: list[str]) -> float:
    """Raises CalledProcessError."""
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def starts(rounds: int) -> dict[str, list[float]]:
    """Seconds of each command, all of them in turn; the first turn only warms up."""
    samples: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, command in COMMANDS.items():
            seconds = start(command)
            if number:
                samples[name].append(seconds)
    return samples


async def transfers(directory: Path, size: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of `dd`, an upload and a download of the same size, in turn, in one sandbox."""
    directory.mkdir()
    local, back = directory / "large", directory / "back"
    with open("/dev/urandom", "rb") as random, open(local, "wb") as file:
        file.writelines(random.read(1 << 20) for _ in range(size >> 20))
    samples: dict[str, list[float]] = {"dd": [], "upload": [], "download": []}
    async with await AsyncSandbox.create(timeout=1800, resources={"disk": "8GB"}) as sandbox:
        await sandbox.exec(f"head -c {size} /dev/urandom > random", check=True)
        for _ in range(rounds):
            await sandbox.exec("rm -f copied uploaded", check=True)
            began = time.perf_counter()
            await sandbox.exec("dd if=random of=copied bs=1M status=none", check=True)
            samples["dd"].append(time.perf_counter() - began)
            began = time.perf_counter()
            await sandbox.files.upload(local, "uploaded")
            samples["upload"].append(time.perf_counter() - began)
            back.unlink(missing_ok=True)
            began = time.perf_counter()
            await sandbox.files.download("uploaded", back)
            samples["download"].append(time.perf_counter() - began)
    return samples


def report(samples: dict[str, list[float]], size: int) -> list[str]:
    """Print it; the goals that are missed."""
    times = {name: percentile(found, 50) for name, found in samples.items()}
    missed = []
    print(f"{EMPTY:20} p50 {times[EMPTY] * 1000:6.1f} ms")
    for name, goal in GOALS.items():
        ratio = times[name] / times[EMPTY]
        print(f"{name:20} p50 {times[name] * 1000:6.1f} ms, {ratio:4.1f} × (goal ≤ {goal:g} ×)")
        missed += [f"{name} takes {ratio:.1f} × an empty program, above {goal:g}"] if ratio > goal else []
    for name in ("upload", "download"):
        share = times["dd"] / times[name]
        speed = size / times[name] / 1e6
        print(f"{name} of {size >> 20} MB: {speed:.0f} MB/s, {share:.2f} × dd inside (goal ≥ {TRANSFER:g} ×)")
        missed += [f"{name} has {share:.2f} × the speed of dd, below {TRANSFER:g}"] if share < TRANSFER else []
    return missed


async def measure(quick: bool) -> tuple[dict[str, list[float]], int]:
    size = 64 << 20 if quick else SIZE
    async with workspace() as directory:
        samples = starts(5 if quick else 25)
        samples |= await transfers(directory / "transfers", size, 2 if quick else 5)
    return samples, size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few of everything: for a look, not for numbers")
    try:
        samples, size = asyncio.run(measure(parser.parse_args().quick))
    except BlockingIOError:
        print("error: another benchmark is running", file=sys.stderr)
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "program-latest.json").write_text(json.dumps(samples, indent=1))
    for text in report(samples, size):
        print(f"missed: {text}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
