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
# When this began, for the tests' report: on a slow machine the preparations may take longer than they.
ifndef BLACKBOARD_TEST_BEGAN_S
export BLACKBOARD_TEST_BEGAN_S := $(shell date +%s)
endif
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

.PHONY: help venv servers demo lint types check test test-all test-frameworks versions lowest newest \
	chaos mutants proof audit bench site pictures constraints dist clean

# A verb is listed with `## TIME: what it does`. Times were measured on two cores of one machine, while
# other programs ran. What is in brackets changes some.
help: ## 0 s: List the verbs
	@sed -nE 's/^([a-z-]+):.*## ([^:]+): (.*)/  make \1\t\2\t\3/p' $(MAKEFILE_LIST) | expand -t 24,36

$(STAMP): pyproject.toml clients/python/pyproject.toml constraints.txt tools/make_venv.sh
	@tools/make_venv.sh
	@touch $@

venv: $(STAMP) ## 2 min: Make .venv with everything development needs

servers: ## 20 s: Get the servers for the tests, Redis without installing it and PostgreSQL
	@tools/get_redis.sh
	@tools/get_postgres.sh

demo: $(STAMP) ## 20 s: Run the demonstration (KEEP=1: with pauses, and the team works on, to look at its page)
	@$(RUN)blackboard demo $(if $(KEEP),--keep)

lint: $(STAMP)
	$(RUN)ruff check .
	$(RUN)ruff format --check .

types: $(STAMP)
	$(RUN)mypy --strict $(PYTHON_FOLDERS)

# Which tests belong to which of these three: tests/tiers.py.
check: $(STAMP) lint ## 2 min: Check what needs no server: style, types, rules, units
	@echo "check: types, and the quick tests, $(WORKERS) at a time"
	$(call tests_and_types,-q -m quick)

# The servers come from elsewhere than the packages: neither waits for the other.
test: ## 12 min: Check all behaviour, on each engine and transport
	@$(MAKE) -j2 venv servers
	@echo "test: each behaviour once, $(WORKERS) tests at a time"
	$(PYTEST) -m "not long"

test-all: export BLACKBOARD_TEST_SPAWN := 1
test-all: ## 20 min: Check everything, as CI does: the long forms, too
	@$(MAKE) -j2 venv servers
	@$(MAKE) lint
	@echo "test-all: types, and every test, $(WORKERS) at a time"
	$(call tests_and_types,)

test-frameworks: $(STAMP) ## 7 min: Test the adapters whose framework has an environment of its own (NAMES=...)
	@tools/test_frameworks.sh $(NAMES)

versions: servers ## 16 min: Run the quick checks under every Python that is here (WHOLE=1 for all tests)
	@tools/versions.sh

lowest: ## 5 min: Run the quick checks with the lowest versions that we admit
	@tools/extremes.sh lowest

newest: ## 9 min: Run the quick checks with the newest versions that there are
	@tools/extremes.sh newest

chaos: $(STAMP) servers ## 1 min: Break everything at once (BLACKBOARD_CHAOS_SECONDS=...)
	@$(RUN)python -m tests.guarantees.run_chaos

mutants: $(STAMP) servers ## 40 min: Seed faults into a copy of the code, and see that the tests notice each
	@$(RUN)python -m tests.mutants

proof: $(STAMP) servers ## 10 min: Try to break every promise, and print what was tried (BLACKBOARD_PROOF_MINUTES=10)
	@$(RUN)python -m tests.proof

audit: $(STAMP) ## 40 s: Look for known holes in the versions that we test with
	@tools/audit.sh

bench: $(STAMP) ## 68 min: Measure beside other stores (PUBLISH=1 renews docs/performance.md)
	@$(RUN)python -m pip --disable-pip-version-check install --quiet -r bench/requirements.txt
	@$(RUN)python -m bench $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.locks $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.agents $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.turns $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.checkpointers $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.sessions $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.documents $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.recovery $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.stored $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.large_board $(if $(PUBLISH),--publish)
	@$(RUN)python -m bench.memory
	@$(RUN)python -m bench.workspace

site: $(STAMP) ## 12 s: Build the documentation as a site: build/site/html
	@$(RUN)python -m tools.site

pictures: $(STAMP) ## 2 min: Draw the pictures of the documentation again
	@$(RUN)python -m tools.architecture_picture
	@$(RUN)python -m tools.session_picture
	@$(RUN)pytest -q tests/page/test_page_picture.py tests/acceptance/test_tutorial.py
	@cp build/screenshots/page.png build/screenshots/tutorial_*.png docs/

constraints: ## 4 min: Write constraints*.txt from the newest and the lowest versions that we admit
	@tools/write_constraints.sh

dist: $(STAMP) ## 40 s: Build what a release publishes, and check it (docs/releases.md)
	@TAG=$(TAG) tools/make_dist.sh

clean: ## 1 s: Remove what make made
	rm -rf .venv .venv-* .servers .browser .frameworks .js .yjs build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
