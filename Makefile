# Everything a developer does, from a clean clone. Needs Python 3.11 or newer and make; no root.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# The first interpreter that is new enough; `make PYTHON=... setup` takes another.
PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3 python; do \
	if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$$name"; break; fi; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Nothing outside of the hashed files is taken, whatever else the user's pip is told to look at.
INSTALL := $(PIP) install --quiet --require-hashes
SOURCES := src tests $(wildcard bench campaign tools examples)
ARGS ?=

.PHONY: help setup run test test-fast lint types contracts format bench bench-cluster bench-figures bench-peers bench-pipeline campaign sim fuzz sync example dist screenshots docs lock clean

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/python.stamp:
	@if ! $(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "Baton needs Python 3.11 or newer; found $(or $(PYTHON),no such interpreter on the PATH)." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; fi
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
		echo "Python's venv module does not work; on Debian and Ubuntu it comes with the package python3-venv." >&2; exit 1; }
	@touch $@

$(VENV)/server.stamp: requirements/server.txt pyproject.toml $(VENV)/python.stamp
	@echo "Installing what the server needs"
	@$(INSTALL) -r requirements/server.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src # else every start compiles it where PYTHONDONTWRITEBYTECODE is set
	@touch $@

$(VENV)/example.stamp: requirements/example.txt $(VENV)/server.stamp
	@echo "Installing what the example needs"
	@$(INSTALL) -r requirements/example.txt
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt requirements/legacy-botocore.txt $(VENV)/server.stamp
	@echo "Installing what the tests need"
	@$(INSTALL) -r requirements/dev.txt
	@rm -rf $(VENV)/legacy-botocore
	@$(INSTALL) --no-deps --target $(VENV)/legacy-botocore -r requirements/legacy-botocore.txt
	@touch $@

$(VENV)/cluster.stamp: requirements/cluster.txt $(VENV)/dev.stamp
	@echo "Installing what replicated logs need"
	@$(INSTALL) -r requirements/cluster.txt
	@touch $@

$(VENV)/spark.stamp: requirements/spark.txt $(VENV)/cluster.stamp
	@echo "Installing what the data pipeline needs"
	@$(INSTALL) -r requirements/spark.txt
	@touch $@

$(VENV)/docs.stamp: requirements/docs.txt $(VENV)/spark.stamp
	@echo "Installing what the documentation site is built with"
	@rm -rf $(VENV)/docs-site
	@$(INSTALL) --no-deps --target $(VENV)/docs-site -r requirements/docs.txt
	@touch $@

setup: $(VENV)/docs.stamp ## Install everything into .venv, by hash
	@echo "Ready: $(BIN)/baton"

run: $(VENV)/server.stamp ## Start a server here (ARGS="--port 9999" adds to the command)
	@exec $(BIN)/baton serve $(ARGS)

test: $(VENV)/docs.stamp ## Lint, types, import contracts and every test
	@$(BIN)/python tools/check.py all

test-fast: $(VENV)/spark.stamp ## Lint, types and the suites that take seconds
	@$(BIN)/python tools/check.py fast

lint: $(VENV)/spark.stamp ## Lint, format check, types, import contracts
	@$(BIN)/python tools/check.py lint

format: $(VENV)/dev.stamp ## Format the code and mend what can be mended
	@$(BIN)/ruff check --quiet --fix $(SOURCES) || true
	@$(BIN)/ruff format $(SOURCES)

bench: $(VENV)/spark.stamp ## Run the benchmarks (ARGS are passed on)
	@$(BIN)/python -m bench $(ARGS)

bench-pipeline: $(VENV)/spark.stamp ## The data pipeline beside DuckDB, Polars and Parquet to Parquet (ARGS are passed on)
	@$(BIN)/python -m bench decode ingest lifecycle audit growth --results bench/results/pipeline $(ARGS)

bench-cluster: $(VENV)/cluster.stamp ## A cluster beside its raw log, and the stated loads on it (ARGS are passed on)
	@$(BIN)/python -m bench cluster scenarios --cluster --results bench/results/cluster $(ARGS)

bench-peers: $(VENV)/dev.stamp ## Baton beside Redis, PostgreSQL, and RabbitMQ and NATS if installed (ARGS are passed on)
	@$(BIN)/python -m bench.peers $(ARGS)

bench-figures: $(VENV)/spark.stamp ## Measure, and write the figures into docs/explanation/performance.md (ARGS are passed to the first two runs)
	@$(BIN)/python -m bench --results bench/results/broker $(ARGS)
	@$(BIN)/python -m bench kinds --results bench/results/kinds $(ARGS)
	@$(BIN)/python -m bench.peers
	@$(BIN)/python -m bench.figures bench/results/broker bench/results/kinds bench/results/peers

sim: $(VENV)/dev.stamp ## Replay one simulation: make sim SEED=7, of a cluster: make sim SEED=7 CLUSTER=1
	@$(BIN)/python -m sim --seed $(or $(SEED),1) $(if $(CLUSTER),--cluster) $(ARGS)

fuzz: $(VENV)/dev.stamp ## Fuzz real servers: make fuzz SECONDS=600 SEED=7; one case again: SEED=7 PROFILE=secured CASE=12
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) \
		$(if $(PROFILE),--profile $(PROFILE)) $(if $(CASE),--case $(CASE)) $(if $(FILE),--file $(FILE)) $(ARGS)

campaign: $(VENV)/spark.stamp ## Faults on a real cluster, 20 rounds of each (ARGS="--rounds 1 --fault kill-owner")
	@$(BIN)/python -m campaign $(ARGS)

example: $(VENV)/example.stamp ## Run the worked example: 200 images through a whole pipeline (ARGS="--images 20")
	@$(BIN)/python -m examples.transcode $(ARGS)

dist: $(VENV)/server.stamp ## Build the wheel and the source distribution in dist/
	@$(BIN)/python tools/build_dist.py $(ARGS)

sync: $(VENV)/dev.stamp ## Write the generated parts of the client: the one for threads, and the types of queue settings
	@$(BIN)/python tools/make_settings.py
	@$(BIN)/python tools/make_sync.py

screenshots: $(VENV)/dev.stamp ## Every page of the dashboard, wide and narrow, light and dark (ARGS="--out DIR")
	@$(BIN)/python -m tests.ui.screenshots $(ARGS)

docs: $(VENV)/docs.stamp ## Rewrite the generated parts of docs/ and build the searchable site in build/site
	@$(BIN)/python tools/make_docs.py
	@$(BIN)/python tools/build_site.py

COMPILE := .venv-lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate --no-header \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options

lock: ## Write requirements/*.txt anew from requirements/*.in (ARGS=--upgrade takes newer versions)
	@test -n "$(PYTHON)"
	@test -x .venv-lock/bin/pip-compile || { $(PYTHON) -m venv .venv-lock && \
		.venv-lock/bin/python -m pip install --quiet --require-hashes -r requirements/lock.txt; }
	@for name in server example dev legacy-botocore cluster docs image spark lock; do $(COMPILE) $(ARGS) -o requirements/$$name.txt requirements/$$name.in; done
	@! grep -nE '://|^-|[ =]/' requirements/*.txt

clean: ## Remove the environment and everything that was built
	rm -rf .venv .venv-lock build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
