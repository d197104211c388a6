"""Facts about this machine that a reader of the numbers needs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from bench.memory import meminfo
from skerry import __version__


def facts(directory: Path) -> dict[str, str | int | float]:
    return {
        "skerry": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "unknown"),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": meminfo("MemTotal"),
        "file_system": _say("stat", "-f", "-c", "%T", str(directory)),
        "crun": _say("crun", "--version"),
        "load_before": os.getloadavg()[0],
    }


def _cpu() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def _say(*argv: str) -> str:
    """The first line that a program prints."""
    if shutil.which(argv[0]) is None:
        return "not installed"
    lines = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()
    return lines[0].strip() if lines else "unknown"
