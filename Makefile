# Everything a developer does. `make` alone lists the verbs.
# Needs make and Python 3.11 or newer; the rest is fetched. No C compiler is used.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON_FOLDERS := $(foreach folder,blackboard agents demos bench clients/python tests tools,\
	$(if $(wildcard $(folder)/*.py),$(folder)))
RUN := .venv/bin/
STAMP := .venv/.installed

# Tests wait for servers, disks and processes more than they compute.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS ?= $(shell echo $$((2 * $(CORES))))
# A hang that no signal ends has a bound of its own here, where no test takes as long: it tells where
# each thread is, and exits.
PYTEST := $(RUN)pytest -n $(WORKERS) --dist worksteal \
	-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
# Tests start processes by the hundred: each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

# Types are checked beside the tests, which wait a good deal; what mypy says follows the tests.
define tests_and_types
	@said=$$(mktemp); trap 'rm -f "$$said"' EXIT; \
	$(MAKE) types >"$$said" 2>&1 & types=$$!; \
	code=0; $(PYTEST) $(1) || code=$$?; \
	wait $$types || code=$$?; cat "$$said"; exit $$code
endef

.PHONY: help venv servers demo lint types check test test-all versions chaos mutants proof audit bench constraints clean

help: ## List the verbs
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

$(STAMP): pyproject.toml clients/python/pyproject.toml constraints.txt tools/make_venv.sh
	@tools/make_venv.sh
	@touch $@

venv: $(STAMP) ## Make .venv with everything development needs

servers: ## Get the servers for the tests: Redis without installing it, PostgreSQL
	@tools/get_redis.sh
	@tools/get_postgres.sh

demo: $(STAMP) ## Run the demonstration
	@$(RUN)python -m blackboard.demos.valuation

lint: $(STAMP)
	$(RUN)ruff check .
	$(RUN)ruff format --check .

types: $(STAMP)
	$(RUN)mypy --strict $(PYTHON_FOLDERS)

# Which tests belong to which of these three: tests/tiers.py.
check: $(STAMP) lint ## Check what needs no server: style, types, rules, units: 2 minutes
	@echo "check: types, and the quick tests, $(WORKERS) at a time"
	$(call tests_and_types,-q -m quick)

test: $(STAMP) servers lint ## Check all behaviour, on each engine and transport: 10 minutes
	@echo "test: types, and each behaviour once, $(WORKERS) tests at a time"
	$(call tests_and_types,-m "not long")

test-all: export BLACKBOARD_TEST_SPAWN := 1
test-all: $(STAMP) servers lint ## Check everything, as CI does: the long forms, too
	@echo "test-all: types, and every test, $(WORKERS) at a time"
	$(call tests_and_types,)

versions: servers ## Run the quick checks under every Python that is here (WHOLE=1 for all tests)
	@tools/versions.sh

chaos: $(STAMP) servers ## Break everything at once for a minute (BLACKBOARD_CHAOS_SECONDS=...)
	@$(RUN)python -m tests.guarantees.run_chaos

mutants: $(STAMP) servers ## Seed faults into a copy of the code, and see that the tests notice each
	@$(RUN)python -m tests.mutants

proof: $(STAMP) servers ## Try to break every promise, and print what was tried (BLACKBOARD_PROOF_MINUTES=10)
	@$(RUN)python -m tests.proof

audit: $(STAMP) ## Look for known holes in the versions that we test with
	@tools/audit.sh

bench: $(STAMP) ## Measure beside other stores (PUBLISH=1 renews docs/performance.md)
	@$(RUN)python -m pip --disable-pip-version-check install --quiet -r bench/requirements.txt
	@$(RUN)python -m bench $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.locks $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.agents $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.documents $(if $(PUBLISH),--publish)

constraints: ## Write constraints.txt from the newest versions that we admit
	@tools/write_constraints.sh

clean: ## Remove what make made
	rm -rf .venv .servers .js .yjs build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
