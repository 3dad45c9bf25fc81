# What there is to do with a clone of Canopy. Every target builds the environment it needs (see .ci/environment).
#
#   make run     start the broker on 127.0.0.1:1883            ARGS="--listen mqtt://0.0.0.0:1883"
#   make quick   tests/core, interpreted from the source: no build, a minute   ARGS="-k retained -x"
#   make test    lint, then the tests that protect             ARGS="-k retained -x"
#   make test-long  the other tests: all examples of every property, the core interpreted, Spark, fuzz, benches, Pythons
#   make test-pythons  tests/core and a running broker on each other Python 3.11, 3.12, 3.13 that is found
#   make lint    style, types and the walls between packages
#   make bench   Canopy beside mosquitto, on this machine      ARGS="--quick"
#   make bench-NAME  another benchmark: routing, growth, store, upstream, observing, inprocess, pipeline, source   ARGS="--quick"
#   make scale  what millions of filters and tens of thousands of clients cost   ARGS="filters --sizes 100000"
#   make crash    kill -9 and power cuts, again and again   ARGS="-k power"
#   make attack  hostile clients of every kind beside 100 pairs of good ones   ARGS="flood --seconds 3" or "--list"
#   make docs     the documentation as a site, in site/; a dead link is an error
#   make demo    a recorded broker, an IoT fleet for 20 seconds, and what the pipeline makes of it   ARGS="--scale 2"
#   make fuzz    random and mutated packets, and hostile settings, for FUZZ_SECONDS (default 60)
#   make setup   only the environment, in .venv, with everything the tests need
#   make clean   remove what the targets built
#
# CANOPY_PURE=1 leaves the core interpreted; without a C compiler that happens by itself.

VENV ?= .venv
export VENV
ARGS ?=
FUZZ_SECONDS ?= 60
export FUZZ_SECONDS

# -P: the folder one stands in is not importable, so `broker` is the installed package and not the source beside it.
PY := $(VENV)/bin/python -P
# The packages `tests` and `benchmarks` are importable from here, and only they.
TESTS := PYTHONPATH="$(VENV)/paths"

.PHONY: help run quick test suite test-long test-pythons lint bench bench-routing bench-growth bench-store bench-upstream bench-observing bench-inprocess bench-pipeline bench-source scale attack crash demo docs fuzz setup setup-run clean

help:
	@sed -n 's/^#   //p' Makefile

setup:
	@.ci/environment dev

setup-run:
	@.ci/environment run

run: setup-run
	@exec $(PY) -m broker serve $(ARGS)

# Four processes, since tests wait for something nearly half the time (how tests are dealt to them: tests/conftest.py).
# PYTHONSAFEPATH is -P for them too.
# RERUNS: continuous integration tries a test that failed once more, and names it.
# What pytest makes of the tests' files is kept for the next run, whatever the environment says of bytecode.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest --numprocesses=4 $(RERUNS)
INTERPRETED := PYTHONPATH=. PYTHONSAFEPATH=1 CANOPY_EXPECT=interpreted

quick:
	@.ci/environment quick
	@$(INTERPRETED) $(PYTEST) tests/core -q -m "not long" $(ARGS)

test: lint
	@$(MAKE) --no-print-directory suite

suite: setup
	@core=$$($(PY) -m broker.buildinfo) && PYTHONSAFEPATH=1 CANOPY_EXPECT="$$core" $(TESTS) $(PYTEST) -m "not long" $(ARGS)

# Properties run here with all their examples (CANOPY_LONG), so they run in both.
test-long: setup
	@core=$$($(PY) -m broker.buildinfo) && \
	if [ "$$core" = compiled ]; then \
	    echo "canopy: tests/core, interpreted from the source tree" && $(INTERPRETED) $(PYTEST) tests/core -q; \
	fi && \
	echo "canopy: the conformance tests over WebSocket" && \
	PYTHONSAFEPATH=1 CANOPY_E2E_SCHEME=ws CANOPY_EXPECT="$$core" $(TESTS) $(PYTEST) tests/e2e/conformance -q && \
	echo "canopy: the conformance tests of mounted clients" && \
	PYTHONSAFEPATH=1 CANOPY_E2E_MOUNT=tenant/ CANOPY_EXPECT="$$core" $(TESTS) $(PYTEST) tests/e2e/conformance -q && \
	echo "canopy: the conformance tests with a store on disk" && \
	PYTHONSAFEPATH=1 CANOPY_E2E_STORE=1 CANOPY_EXPECT="$$core" $(TESTS) $(PYTEST) tests/e2e/conformance -q && \
	echo "canopy: the conformance tests with a store in PostgreSQL" && \
	PYTHONSAFEPATH=1 CANOPY_E2E_STORE=postgresql CANOPY_EXPECT="$$core" $(TESTS) $(PYTEST) tests/e2e/conformance -q && \
	echo "canopy: the long tests, and all examples of every property" && \
	PYTHONSAFEPATH=1 CANOPY_LONG=1 CANOPY_EXPECT="$$core" $(TESTS) $(PYTEST) --timeout=600 -m "long or hypothesis" $(ARGS)
	@$(MAKE) --no-print-directory test-pythons

test-pythons:
	@.ci/pythons

lint: setup
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy --num-workers=2
	@PYTHONPATH=. $(VENV)/bin/lint-imports
	@if [ -f tools/conformance.py ]; then $(PY) tools/conformance.py --check; fi

bench: setup
	@$(TESTS) $(PY) -m benchmarks network $(ARGS)

bench-routing bench-growth bench-store bench-upstream bench-observing bench-inprocess bench-pipeline bench-source: setup
	@$(TESTS) $(PY) -m benchmarks $(@:bench-%=%) $(ARGS)

scale: setup
	@$(TESTS) $(PY) -m benchmarks scale $(ARGS)

attack: setup
	@$(TESTS) $(PY) -m benchmarks attack $(ARGS)

crash: setup
	@$(TESTS) PYTHONSAFEPATH=1 $(PYTEST) tests/e2e/store/test_live.py tests/e2e/store/test_shared.py tests/e2e/test_links_killed.py tests/e2e/store/test_power_loss.py -q $(ARGS)

demo: setup
	@$(PY) tools/demo.py $(ARGS)

# The variable silences an advertisement of the theme.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	@echo "canopy: the documentation is in site/index.html"

fuzz: setup
	@$(TESTS) $(PY) -m tests.fuzz $(ARGS)

clean:
	rm -rf .venv-3.* $(VENV) $(VENV).lock build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis tests/e2e/js/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
