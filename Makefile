# Commands of this repository. Each one makes what it needs; nothing here needs more than python3 (3.11 or newer), its venv module, gcc and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS ?= tests

.PHONY: demo test check proto proto-check lint types lock bench bench-sample bench-gate bench-ahead bench-stall bench-fleet-metrics clean

$(READY): requirements/dev.lock.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock.txt
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
	touch $@

demo: $(READY)
	$(BIN)/python demo/demo.py $(if $(ONCE),--once)

test: $(READY)
	$(BIN)/python -m pytest -n 2 $(TESTS)

check: proto-check lint types test

proto: $(READY)
	$(BIN)/python tools/contract.py generate

proto-check: $(READY)
	$(BIN)/python tools/contract.py check

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

# One sample, process start to exit, against a C program that does the same work.
bench-sample: $(READY)
	$(BIN)/python -m benchmarks.sample

# A guest without a GPU: children, system calls, and CPU per GpuInfo call against a constant handler.
bench-gate: $(READY)
	$(BIN)/python -m benchmarks.gate

# Age of what a steady scraper is served, refreshing ahead and lazily.
bench-ahead: $(READY)
	$(BIN)/python -m benchmarks.refresh_ahead

# How long starting a sample stalls the event loop.
bench-stall: $(READY)
	$(BIN)/python -m benchmarks.loop_stall

# The fleet's metrics for 1000 guests with 8 cards: cost of a page, and how long the event loop is held.
bench-fleet-metrics: $(READY)
	GRPC_VERBOSITY=NONE $(BIN)/python -m benchmarks.fleet_metrics

# Resolve the dependencies anew and lock them with hashes.
lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet --upgrade -o requirements/dev.lock.txt

clean:
	rm -rf $(VENV) build dist
