"""Runs the benchmark from a source tree: `python bench/run.py --help`."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
runpy.run_module("bench", run_name="__main__", alter_sys=True)
