# `make run` and `make test` need nothing but make on a new Debian or Ubuntu machine, as root; `make` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON := .venv/bin/python
BIN := src/skerry/_bin
PYTEST := $(PYTHON) -m pytest
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 60
CRASH_ROUNDS ?= 500
KEEPING_ROUNDS ?= 200

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install missing packages, make .venv, build the native parts
	@tools/setup.sh
	@$(MAKE) native

.PHONY: programs
programs: # what a wheel holds beside Python, see tools/hatch_build.py
	@$(MAKE) -s -C agent
	@$(MAKE) -s -C launcher
	@$(MAKE) -s $(addprefix $(BIN)/, agent launcher dns seccomp.bpf libsystemd.so.0)

.PHONY: native
native: programs
	@# Where PYTHONDONTWRITEBYTECODE is set, Python does not compile by itself, and every start takes twice as long.
	@$(PYTHON) -m compileall -q --invalidation-mode checked-hash -x templates/builtin src

$(BIN)/agent: agent/build/agent
$(BIN)/launcher: launcher/build/launcher
$(BIN)/dns: launcher/build/dns
$(BIN)/seccomp.bpf: launcher/build/seccomp.bpf
$(BIN)/libsystemd.so.0: launcher/build/libsystemd.so.0
$(BIN)/%:
	@mkdir -p $(BIN)
	@cp $< $@.new && mv -f $@.new $@ # renamed, since a running sandbox may have the old one open

launcher/build/seccomp.bpf: tools/gen_seccomp.py src/skerry/providers/local/launch/seccomp.py
	@mkdir -p $(@D)
	@$(PYTHON) tools/gen_seccomp.py $@

.PHONY: wheel
wheel: setup ## build a wheel in dist/ that pip can install on any Linux of this architecture
	@mkdir -p dist && rm -f dist/skerry-*.whl
	@$(PYTHON) -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	@ls dist/skerry-*.whl

.PHONY: run
run: setup ## run code in a real sandbox and time it, then start the server: prints its address, a sign-in link, a curl command
	@$(PYTHON) examples/quickstart.py
	@.venv/bin/skerry up

.PHONY: demo
demo: setup ## do the same without the server, and compare the times with those of a plain process
	@$(PYTHON) examples/quickstart.py
	@.venv/bin/skerry bench --quick

.PHONY: test
test: ## run everything that must pass: checks and all tests, with real sandboxes
	@tools/setup.sh test
	@$(MAKE) native
	@$(MAKE) -j2 --output-sync=line check sanitized
	@$(PYTHON) tools/run_tests.py $(PYTEST_ARGS)

.PHONY: test-all
test-all: ## run also the tests that are too slow for every commit; writes tests/results/test-all.json
	@tools/setup.sh test
	@$(MAKE) native
	@$(MAKE) -j2 --output-sync=line check sanitized
	@$(PYTHON) tools/run_tests.py --all $(PYTEST_ARGS)

.PHONY: sanitized
sanitized: # two slow builds, done first so that no test waits for them
	@$(MAKE) -s -C agent asan hasty

.PHONY: check
check: ## check lint, format, types, layers, generated files
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports --no-logo
	$(PYTHON) tools/check_english.py
	$(PYTHON) tools/gen_doors.py --check
	$(PYTHON) tools/gen_sync.py --check
	$(PYTHON) docs/reference/generate.py --check
	@# The brackets keep this line from finding itself.
	@! git grep --no-index --exclude-standard -nIE 'p[y]pi\.org|p[y]thonhosted|registry\.n[p]mjs' -- . || \
		{ echo 'error: no registry host name belongs in the tree' >&2; exit 1; }
	@test ! -e uv.lock || { echo 'error: requirements*.txt are the lock; remove uv.lock' >&2; exit 1; }

.PHONY: fmt
fmt: ## format the code, fix what can be fixed, generate files again
	$(PYTHON) -m ruff check --fix-only --exit-zero .
	$(PYTHON) -m ruff format .
	$(PYTHON) tools/gen_doors.py
	$(PYTHON) tools/gen_sync.py
	$(PYTHON) docs/reference/generate.py

.PHONY: conformance
conformance: ## run the conformance suite on all providers and write its page
	$(PYTHON) -m skerry conformance -o json > docs/reference/conformance-local.json
	$(PYTHON) tools/with_server.py $(PYTHON) -m skerry conformance --provider remote -o json \
		> docs/reference/conformance-remote.json
	$(PYTHON) -m skerry conformance --provider examples.memory_provider:MemoryProvider --network open -o json \
		> docs/reference/conformance-memory.json
	$(PYTHON) docs/reference/generate.py

.PHONY: bench
bench: setup ## measure this machine; DOCKER=1 adds Docker in the same run
	$(PYTHON) bench/run.py $(if $(DOCKER),--docker)
	$(PYTHON) bench/server.py
	$(PYTHON) bench/program.py

.PHONY: soak
soak: ## run the long tests, about 40 minutes: kills, lost connections, trees of 50,000 files, clients of a server, fuzzing
	@tools/setup.sh test
	@$(MAKE) native
	@$(MAKE) -j3 --output-sync=target soak-crashes soak-keeping soak-rest

SOAK = SOAK=1 SKERRY_DISCONNECTS=1000 SKERRY_TEST_FILES=50000 SKERRY_LOAD_SECONDS=300 SKERRY_LOAD_CLIENTS=100 \
	SKERRY_API_EXAMPLES=10 SKERRY_TEST_BYTES=5368709120 SKERRY_UP_KILLS=10 tools/test_worker.sh -m pytest -m soak --timeout=14400 -p no:cacheprovider -rP
.PHONY: soak-crashes soak-keeping soak-rest
soak-crashes:
	SKERRY_CRASH_ROUNDS=$(CRASH_ROUNDS) $(SOAK) tests/providers/local/crash/test_kill.py $(PYTEST_ARGS)
soak-keeping:
	SKERRY_CRASH_ROUNDS=$(KEEPING_ROUNDS) $(SOAK) --ignore=tests/providers/local/crash/test_kill.py tests/providers/local/crash $(PYTEST_ARGS)
soak-rest:
	$(SOAK) --ignore=tests/providers/local/crash $(PYTEST_ARGS)
	@$(MAKE) fuzz FUZZ_SECONDS=120

.PHONY: new-machine
new-machine: ## run `make test` on a new minimal Debian, which has only what this tree sets up
	@tools/setup.sh
	tools/new_machine.sh make test

.PHONY: vm-test
vm-test: ## test limits and what else depends on the system, on a real Debian with cgroup v2 (SUITE=trixie, CASES="doctor bombs")
	tools/vm_test.sh $(CASES)

.PHONY: mutants
mutants: ## break the code on purpose, one way at a time, and check that the named test fails (MUTANT="name" for one)
	@tools/setup.sh test
	@$(MAKE) native
	$(PYTHON) tests/mutants/run.py $(if $(MUTANT),--only "$(MUTANT)")

.PHONY: fuzz
fuzz: ## fuzz both decoders for FUZZ_SECONDS (60) each
	@tools/setup.sh test
	@$(MAKE) native
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(PYTEST) -k fuzz --timeout=14400 $(PYTEST_ARGS)

.PHONY: lock
lock: ## resolve the dependencies again, to their newest versions
	@tools/setup.sh
	for what in "requirements.txt --extra server" "requirements-dev.txt --extra server --group dev -c requirements.txt"; do \
		.venv/bin/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
			pyproject.toml -o $$what; \
	done
	echo uv | .venv/bin/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
		--no-header - -o requirements-uv.txt
	printf 'openapi-python-client\nopenapi-spec-validator\n' | .venv/bin/uv pip compile -q --upgrade --universal \
		--python-version 3.11 --generate-hashes --no-annotate --no-header - -o requirements-client.txt
	echo drf-spectacular-sidecar | .venv/bin/uv pip compile -q --upgrade --no-deps --universal --python-version 3.11 \
		--generate-hashes --no-annotate --no-header - -o requirements-page.txt

.PHONY: clean
clean: ## remove what was built; .venv and sandboxes stay
	$(MAKE) -s -C agent clean
	$(MAKE) -s -C launcher clean
	rm -rf $(BIN) src/skerry/server/static dist bench/results .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests tools examples bench -name __pycache__ -prune -exec rm -rf {} +
