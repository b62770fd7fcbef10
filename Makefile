# Commands of this repository. Each one makes what it needs; nothing here needs more than python3 (3.11 or newer), its venv module,
# gcc and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOCK ?= requirements/dev.lock.txt
READY := $(VENV)/.ready
# Errors only: Debian 12's pip warns of one dependency that has no wheel.
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
TESTS ?= tests

.PHONY: pictures axe help demo test check proto proto-check reference messages metrics-reference docs lint types lock wheel deb deb-test vm-test vm-test-vsock test-floor test-pythons clean \
  fuzz coverage soak kills attack bench bench-sample bench-gate bench-ahead bench-stall bench-forward bench-fleet bench-fleet-metrics bench-growth results fleet-sim gpu-check

help:
	@echo 'make demo           simulated guests and the proxy, until Ctrl-C; ONCE=1 shows them once and ends'
	@echo 'make pictures       the pictures of the pages in docs; axe: what the tests of accessibility need (npm)'
	@echo 'make test           all tests; TESTS=tests/proxy runs some of them'
	@echo 'make check          all tests and every other check'
	@echo 'make vm-test        emulated VMs: real vsock, the installed packages under systemd, suspended and paused; vm-test-vsock: vsock alone'
	@echo 'make test-floor     the tests at the oldest supported dependencies; test-pythons: with each Python that is here'
	@echo 'make fuzz           hostile bytes at every door of the product; SECONDS=60 for each door'
	@echo 'make coverage       branch coverage by package and module, child processes included'
	@echo 'make gpu-check      on a machine with a real NVIDIA GPU: what must work there, as a table and gpu-check.json'
	@echo 'make lint types     style and imports; types'
	@echo 'make proto          generated/ and the lock of the contract from proto/ (proto-check compares them)'
	@echo 'make docs           the site in build/site, every warning and dead link an error; reference: the pages that are generated'
	@echo 'make messages       tests/messages/messages.txt: every error text of the product, from its source'
	@echo 'make wheel          wheel and sdist in dist/, reproducible'
	@echo 'make deb            the Debian packages of guest and host in dist/; deb-test: installs and removes them in a root of its own'
	@echo 'make bench          all benchmarks; bench-sample, -gate, -ahead, -stall, -forward, -fleet, -fleet-metrics: one of them'
	@echo 'make fleet-sim      20 hosts with 50 simulated guests under a real Prometheus, ten minutes (Debian: prometheus): docs/scale.md'
	@echo 'make soak kills     ten minutes of disturbed guests (MINUTES=1); 100 deaths by kill -9 (KILLS=10, SEED=n): docs/soak.md'
	@echo 'make attack         eight minutes of attacks on proxy and agent, and what the honest notice (SECONDS=30 is short): docs/soak.md'
	@echo 'make lock           newer dependencies'
	@echo 'make clean          removes .venv and what was built'

$(READY): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys, ssl, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) must be 3.11 or newer, with venv and ssl (Debian: python3, python3-venv); or: make PYTHON=…" >&2; exit 1; }
	@echo 'Installing the locked dependencies into $(VENV), once (about a minute)…'
	@$(PYTHON) -m venv --clear $(VENV)
	@PYTHONDONTWRITEBYTECODE= $(PIP) install --require-hashes -r $(LOCK)
	@PYTHONDONTWRITEBYTECODE= $(PIP) install --no-deps --no-build-isolation --no-index -e .
	@touch $@

# The pictures of the pages in docs/pictures, with Debian's chromium.
pictures: $(READY)
	$(BIN)/python -m tools.pictures

# What the tests of accessibility load into the browser; they are skipped without it.
axe:
	npm ci --prefix tests/accessibility --no-audit --no-fund

demo: $(READY)
	@$(BIN)/python demo/demo.py $(if $(ONCE),--once)

test: $(READY)
	$(BIN)/python -m pytest -n 4 $(TESTS)

# Real kernels in QEMU's software emulation; a part that is missing (Debian: qemu-system-x86, busybox-static, mmdebstrap, and what `make deb`
# needs) is printed and skipped. vm-test-vsock leaves out the machines that run a Debian with our packages installed, as root.
vm-test: $(READY)
	-$(BIN)/python -m tests.vm.kernel
	-$(MAKE) deb
	$(BIN)/python -m pytest -m 'vm or vm_debian' tests/vm

vm-test-vsock: $(READY)
	-$(BIN)/python -m tests.vm.kernel
	$(BIN)/python -m pytest -m vm tests/vm

# The tests at the oldest release of each runtime dependency that pyproject.toml promises.
test-floor:
	$(MAKE) test VENV=.venv-floor LOCK=requirements/floor.lock.txt

# The tests with each supported Python that is found; PYTHONS names others. Says at the end which were not there.
PYTHONS ?= python3.11 python3.12 python3.13
test-pythons:
	@missing=; for python in $(PYTHONS); do \
	  if $$python -c 'import ssl, venv' 2>/dev/null; \
	  then $(MAKE) test PYTHON=$$python VENV=.venv-$$(basename $$python) || exit 1; \
	  else missing="$$missing $$python"; fi; \
	done; if [ -n "$$missing" ]; then echo "not tested, because they are not here or lack ssl or venv:$$missing" >&2; fi

# Hostile bytes at every door, SECONDS for each; what breaks one is saved in tests/fuzz/corpus. DOORS names some of them, GUIDED=1 adds atheris.
SECONDS ?= 10
fuzz: $(if $(GUIDED),$(VENV)/.fuzz-ready,$(READY))
	$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) $(if $(GUIDED),--guided) $(DOORS)

$(VENV)/.fuzz-ready: $(READY) requirements/fuzz.lock.txt
	@PYTHONDONTWRITEBYTECODE= $(PIP) install --no-deps --require-hashes -r requirements/fuzz.lock.txt
	@touch $@

# Branches that the tests run, in every process of the product; all tests fail under 90 % for a package or a module, TESTS=… only shows.
coverage: $(READY)
	$(BIN)/python -m tools.covered $(if $(filter-out tests,$(TESTS)),$(TESTS))

# On a machine with a real GPU; changes no setting of it. ARGS adds options (python -m gpu_check --help).
gpu-check: $(READY)
	$(BIN)/python -m gpu_check --json gpu-check.json $(ARGS)

check: proto-check lint types docs test

proto: $(READY)
	$(BIN)/python tools/contract.py generate

proto-check: $(READY)
	$(BIN)/python tools/contract.py check

# The pages that are generated: commands, configuration, contract, metrics.
reference: $(READY)
	$(BIN)/python -m tools.references

# Every error text of the product, in tests/messages/messages.txt: to be read, for each must name the thing and what to do.
messages: $(READY)
	$(BIN)/python -m tools.messages

# docs/metrics.md alone, from the table of metrics.
metrics-reference: $(READY)
	$(BIN)/python -m tools.metrics_reference

# The site, from the Markdown pages; it loads nothing from elsewhere and can be opened from a folder.
docs: $(VENV)/.docs-ready
	rm -rf build/site
	$(BIN)/python -m sphinx -b html -c docs/site -d build/site-trees --fail-on-warning --keep-going --nitpicky --fresh-env --quiet . build/site
	$(BIN)/python -m tools.site_check build/site

$(VENV)/.docs-ready: $(READY) requirements/docs.lock.txt
	@PYTHONDONTWRITEBYTECODE= $(PIP) install --no-deps --require-hashes -r requirements/docs.lock.txt
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

bench: bench-sample bench-gate bench-ahead bench-stall bench-forward bench-fleet

# One sample, process start to exit, against a C program that does the same work.
# The tables of benchmarks/RESULTS.md, from what the benchmarks wrote into build/bench.
results: $(READY)
	$(BIN)/python -m benchmarks.results

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

# How the proxy's cost grows with guests and cards; some five minutes.
bench-growth: $(READY)
	GRPC_VERBOSITY=NONE $(BIN)/python -m benchmarks.growth

# Twenty proxies with 50 simulated guests each under a real Prometheus for ten minutes; ARGS adds options (python -m benchmarks.fleet_sim --help).
fleet-sim: $(READY)
	GRPC_VERBOSITY=NONE $(BIN)/python -m benchmarks.fleet_sim $(ARGS)

# GpuInfo through the proxy, a bare grpc.aio forwarder, Envoy and nginx (the last one where it is installed).
bench-forward: $(VENV)/.bench-ready
	$(BIN)/python -m benchmarks.forward

# One collection over 1000 guests, cold and warm, against a bare gather.
bench-fleet: $(READY)
	$(BIN)/python -m benchmarks.forward_fleet

$(VENV)/.bench-ready: $(READY) requirements/bench.lock.txt
	@PYTHONDONTWRITEBYTECODE= $(PIP) install --no-deps --require-hashes -r requirements/bench.lock.txt
	@touch $@

# A fleet under load whose guests hang, go, come back and die; nothing may grow or get lost. OUT=FILE: all that was found, as JSON.
MINUTES ?= 10
soak: $(READY)
	@$(BIN)/python -m soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(OUT),-o $(OUT))

# Agents, collectors and the proxy killed with -9 at random; everything must be whole and back.
KILLS ?= 100
kills: $(READY)
	@$(BIN)/python -m soak.kills --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(if $(OUT),-o $(OUT))

# The proxy and the agent attacked in each known way with honest callers beside it; ROWS=WORDS: only rows with these words.
attack: SECONDS = 480
attack: $(READY)
	@GRPC_VERBOSITY=NONE $(BIN)/python -m soak.attack --seconds $(SECONDS) $(if $(ROWS),--rows '$(ROWS)') $(if $(OUT),-o $(OUT))

# Resolve the dependencies anew and lock them with hashes: what is developed with, what is installed (the same versions without the tools),
# what the proxy's image has (with its extra), the oldest that is promised to work, and what only benchmarks, guided fuzzing and the site need.
LOCKED := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet
UPGRADE ?= --upgrade
lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml --extra kubevirt --group dev $(LOCKED) $(UPGRADE) -o requirements/dev.lock.txt
	$(BIN)/uv pip compile pyproject.toml --constraint requirements/dev.lock.txt $(LOCKED) --upgrade -o requirements/runtime.lock.txt
	$(BIN)/uv pip compile pyproject.toml --extra kubevirt --constraint requirements/dev.lock.txt $(LOCKED) --upgrade -o requirements/image.lock.txt
	$(BIN)/uv pip compile --group bench $(LOCKED) $(UPGRADE) -o requirements/bench.lock.txt
	$(BIN)/uv pip compile --group fuzz $(LOCKED) $(UPGRADE) -o requirements/fuzz.lock.txt
	$(BIN)/uv pip compile --group docs --constraint requirements/dev.lock.txt $(LOCKED) $(UPGRADE) -o requirements/docs.lock.txt
	$(BIN)/python -m tools.floors

# Wheel and sdist in dist/; two builds of one commit are the same to the byte.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
wheel: export SOURCE_DATE_EPOCH := $(SOURCE_DATE_EPOCH)
wheel: $(READY)
	rm -f dist/guestscope-*.whl dist/guestscope-*.tar.gz
	$(BIN)/python -m hatchling build -d dist

# The Debian packages guest-service and vmm-proxy in dist/, for the release that this machine has: apt-get install debhelper dpkg-dev
deb: export SOURCE_DATE_EPOCH := $(SOURCE_DATE_EPOCH)
deb: wheel
	$(BIN)/python -m tools.debian_packages

# Installs the packages in a Debian of its own, runs them and removes them, and builds and runs the proxy's image, as root:
# apt-get install lintian mmdebstrap podman runc
deb-test: deb
	$(BIN)/python -m pytest -m deb tests/packaging

clean:
	rm -rf .venv .venv-* build dist
