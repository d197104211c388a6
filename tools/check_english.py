"""Finds patterns of English that are hard to read. docs/design/english.md has the rules.

python tools/check_english.py [--count] [PATH …]     each place with what to write instead; exits with 1 if there is one
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READ = ("src/skerry", "agent", "launcher", "docs", "examples", "tools", "bench", "*.md", "Makefile")
HISTORY = {"CHANGELOG.md"}
SUFFIXES = {".py", ".c", ".h", ".md", ".sh", ""}
OURS = {"tools/check_english.py", "docs/design/english.md"}
PATTERNS = {
    r"(?<!there )\b(?:is|are|was|were|be|been) no (?!longer\b|more\b|less\b|later\b|\w+er than\b)": "is not a …",
    r"\b(?:go|goes|going|went|gone) on\b": "continue",
    r"\bwhoever\b": "name the actor: the client, the caller, the process",
    r"\bmeanwhile\b": "in the meantime, or say when",
    r"\bof (?:its|their|our|your|his|her|one's|\w+'s) own\b": "its own …",
    r"\banew\b": "again",
    r"\bso many\b": "this many, or the number",
}
"""What is not to be found, and what to write instead."""


def files(paths: list[str]) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *(paths or READ)], cwd=ROOT, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if name and name not in OURS | HISTORY]
    return [ROOT / name for name in names if Path(name).suffix in SUFFIXES and (ROOT / name).is_file()]


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--count"]
    found: Counter[str] = Counter()
    for path in files(arguments):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for pattern, instead in PATTERNS.items():
                for match in re.finditer(pattern, line, re.IGNORECASE):
                    found[instead] += 1
                    if "--count" not in sys.argv:
                        print(f"{path.relative_to(ROOT)}:{number}: {match[0].strip()!r}: {instead}")
    if "--count" in sys.argv:
        for instead, count in found.most_common():
            print(f"{count:5}  {instead}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
