# `make demo` and `make test` start from a clean checkout with nothing but Python, make and the package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# What also runs without compiled code: everything that has a plain form beside a kernel.
PLAIN := tests/kernels tests/models tests/networks tests/samplers tests/training/test_adamax.py

# Types are checked at every call in the quick tests. In the slow ones that would take longer than the work itself.
UNCHECKED := -o addopts="--strict-markers -q"

.DEFAULT_GOAL := help
.PHONY: help demo docs test quick lint bench clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# Stamps: an environment is built again only when what it is built from changes.
$(VENV)/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("dvaepp needs Python 3.11 or newer; run make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "Setting up $(VENV) (once; a few minutes on a slow network) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) "torch==2.13.0"
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@$(PIP) --no-build-isolation --editable ".[dev,demo,docs,dwave,hub,sweep,tb,view]"
	@touch $@

$(VENV)/.demo: $(VENV)/.runtime
	@$(PIP) --no-build-isolation --editable ".[demo]"
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime
	@$(PIP) --no-build-isolation --editable ".[docs,demo,dwave]"
	@touch $@

demo: $(VENV)/.demo ## train a VAE with an RBM prior on 4000 digits and evaluate it, into demo/
	@rm -rf demo/run
	@$(BIN)/dvaepp figure smoothing --out demo/smoothing.png
	@$(BIN)/dvaepp figure inverse-cdf --out demo/inverse-cdf.png
	@$(BIN)/dvaepp train demo --run-dir demo/run
	@$(BIN)/dvaepp evaluate demo/run

# A page of source code is written again only when its file is newer, whatever else changed: so the site is built anew.
docs: $(VENV)/.docs ## build the documentation site with all its notebooks, into docs/_build/html
	@rm -rf docs/_build
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@$(BIN)/python docs/check_site.py docs/_build/html

test: lint ## everything continuous integration checks
	@DVAEPP_KERNEL=off $(BIN)/python -m pytest -n 2 -m "not slow" $(PLAIN)
	@$(BIN)/python -m pytest -n 2 tests/devices
	@$(BIN)/python -m pytest -n 2 -m "not slow"
	@$(BIN)/python -m pytest -n 2 -m slow $(UNCHECKED)

quick: lint ## the same without the slow tests
	@$(BIN)/python -m pytest -n 2 -m "not slow" tests/devices
	@$(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(VENV)/.dev ## style, types and import layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(VENV)/.dev ## speed beside peers and limits
	@$(BIN)/python -m benchmarks

clean: ## remove the environment and caches
	rm -rf $(VENV) .venv-peers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache demo docs/_build
