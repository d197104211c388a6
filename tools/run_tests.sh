#!/usr/bin/env bash
# Runs pytest with the arguments given; the few tests that failed are run once more, alone, on an otherwise idle machine.
# A test that passes only then is named at the end: what it promises holds, but it asks too much of a busy machine.
# Nothing else is forgiven: a skipped test, a run without a sandbox, a crash of pytest, more than a few failures.
set -uo pipefail
cd "$(dirname "$0")/.."
forgiven=5
cache=${SKERRY_TEST_CACHE:-.pytest_cache}

pytest() { .venv/bin/python -m pytest -o "cache_dir=$cache" "$@"; }

pytest --cache-clear "$@"
code=$?
again=$cache/v/skerry/again
[[ $code -eq 1 && -s $again ]] || exit "$code"
mapfile -t failed < <(.venv/bin/python -c 'import json, sys; [print(name) for name in json.load(open(sys.argv[1]))]' "$again")
((${#failed[@]} > 0 && ${#failed[@]} <= forgiven)) || exit "$code"
printf '\n\033[1m%d failed; once more, alone:\033[0m\n' "${#failed[@]}"
SKERRY_REQUIRE_REAL=${SKERRY_REQUIRE_REAL:+again} pytest -n 0 "${failed[@]}" || exit
printf '\n\033[33mfailed beside the other tests, passed alone:\033[0m\n'
printf '  %s\n' "${failed[@]}"
