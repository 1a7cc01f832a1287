# SPDX-License-Identifier: Apache-2.0
# Everything starts from a Python of at least 3.11; `make help` lists what there is to make.
#
# The virtual environment in .venv is set up on first use and again whenever pyproject.toml changes.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
    command -v $$p >/dev/null && $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
    && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
# Processes that run the Python tests; 0 for none but pytest's own, as a debugger wants it.
TEST_JOBS ?= 2
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input

.DEFAULT_GOAL := help
.PHONY: help demo test lit unit slow check format bench conformance dynamic evidence wheel docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.run ## set up, then compile and run an exported transformer and check its numbers
	@$(BIN)/python examples/demo.py

test: $(VENV)/.dev ## set up and run every test: IR tests (lit), then pytest
	@status=0; for part in lit unit; do $(MAKE) --no-print-directory $$part || status=1; done; exit $$status

lit: $(VENV)/.dev ## run the IR tests
	@$(BIN)/lit -sv --order=lexical test

unit: $(VENV)/.dev ## run the Python tests
	@$(BIN)/python -m pytest -q -n $(TEST_JOBS) --dist loadfile $(PYTEST_ARGS)

slow: $(VENV)/.dev ## run the long tests that `make test` leaves out (half an hour)
	@$(BIN)/python -m pytest -q -m slow $(PYTEST_ARGS)

check: $(VENV)/.dev ## lint, formatting and types, as the continuous integration runs them
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.dev ## format the sources and mend what the linter can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.dev ## time gristmill beside XLA:CPU, IREE and numpy (BENCH_ARGS="--only softmax")
	@$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

conformance: $(VENV)/.run ## run the self-checking modules of DIR (make conformance DIR=path)
	@test -n "$(DIR)" || { echo 'say which folder: make conformance DIR=path/to/modules'; exit 2; }
	@$(BIN)/gristmill check $(CHECK_ARGS) $(DIR)

dynamic: $(VENV)/.dev ## compare the programs of dynamic shapes in DIR with XLA (make dynamic DIR=path)
	@test -n "$(DIR)" || { echo 'say which folder: make dynamic DIR=path/to/modules'; exit 2; }
	@$(BIN)/python test/unit/compare_dynamic.py $(COMPARE_ARGS) $(DIR)

evidence: $(VENV)/.dev ## note which operations and types the modules in DIR show to be right, for `make docs`
	@test -n "$(DIR)" || { echo 'say which folder: make evidence DIR=path/to/modules'; exit 2; }
	@$(BIN)/python docs/evidence.py $(EVIDENCE_ARGS) $(DIR)

wheel: $(VENV)/.dev ## build the wheel into dist/
	@$(BIN)/python -m build --wheel --outdir dist .

docs: $(VENV)/.dev ## regenerate the reference pages from the tables in the code
	@$(BIN)/python docs/generate.py

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'no Python >= 3.11 with the venv module found; set PYTHON=path'; exit 2; }
	@echo "setting up $(VENV) with $(PYTHON) (once; over 1 GB with everything) ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@$(PIP) install --editable '.[dev]'
	@$(BIN)/python typings/mend_stubs.py
	@touch $(VENV)/.run $@
