# Commands of this repository. Each one makes what it needs; nothing here needs more than python3 (3.11 or newer), its venv module, gcc and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS ?= tests

.PHONY: demo test check proto proto-check metrics-reference lint types lock bench bench-sample bench-gate bench-ahead bench-stall bench-forward bench-fleet clean

$(READY): requirements/dev.lock.txt pyproject.toml
	@$(PYTHON) -c 'import sys, ssl, venv; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) must be 3.11 or newer, with venv and ssl (Debian: python3, python3-venv); or: make PYTHON=…" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
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

# docs/metrics.md from the table of metrics.
metrics-reference: $(READY)
	$(BIN)/python -m tools.metrics_reference

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

# GpuInfo through the proxy, a bare grpc.aio forwarder, Envoy and nginx (the last one where it is installed).
bench-forward: $(VENV)/.bench-ready
	$(BIN)/python -m benchmarks.forward

# One collection over 1000 guests, cold and warm, against a bare gather.
bench-fleet: $(READY)
	$(BIN)/python -m benchmarks.forward_fleet

$(VENV)/.bench-ready: $(READY) requirements/bench.lock.txt
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/bench.lock.txt
	touch $@

# Resolve the dependencies anew and lock them with hashes.
lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet --upgrade -o requirements/dev.lock.txt
	$(BIN)/uv pip compile --group bench --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet --upgrade -o requirements/bench.lock.txt

clean:
	rm -rf $(VENV) build dist
