# What there is to do with a clone of Canopy. Every target builds the environment it needs (see .ci/environment).
#
#   make run     start the broker on 127.0.0.1:1883, interpreted at first: `make setup` compiles it
#                                                              ARGS="--listen mqtt://0.0.0.0:1883"
#   make quick   tests/core, interpreted from the source: no build, a minute   ARGS="-k retained -x" or ROOM=settings
#   make test    lint, beside the tests that protect           ARGS="-k retained -x"
#   make test-long  the other tests: all examples of every property, Spark, fuzz, benches
#   make test-pythons  tests/core and a running broker on Python 3.11, 3.12, 3.13
#   make test-spark  the jobs on the oldest Spark that they are for   SPARK=4.2.0
#   make interpreted  the tests of the rooms whose modules are compiled, interpreted from the source
#   make coverage  what `make suite interpreted COVERAGE=1` measured, held against .ci/coverage
#   make lint    style, types and the walls between packages
#   make bench   Canopy beside mosquitto, on this machine      ARGS="--quick"
#   make bench-NAME  another benchmark: routing, growth, store, upstream, nodes, cluster, inprocess, connecting, delay, pipeline, source   ARGS="--quick"
#   make scale  what millions of filters and tens of thousands of clients cost   ARGS="filters --sizes 100000"
#   make crash    kill -9 and power cuts, again and again, with every seed   ARGS="-k power"
#   make prove   what the broker loses while connections break and it is killed   ARGS="--minutes 60"
#   make attack  hostile clients of every kind beside 100 pairs of good ones   ARGS="flood --seconds 3" or "--list"
#   make docs     the documentation as a site, in site/; a dead link is an error
#   make deb     a Debian package of the broker as a service, in dist/, for the Debian or Ubuntu that builds it
#   make demo    a recorded broker, an IoT fleet for 20 seconds, and what the pipeline makes of it   ARGS="--scale 2"
#   make pictures  the screenshots of the documentation, by Chromium
#   make pages   docs/settings.md, docs/commands.md and the figures of docs/sys.md, from the code
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

PY := $(VENV)/bin/python -P
# `tests` and `benchmarks` are importable from here. Canopy is the installed one: its sources lie a folder deeper.
TESTS := PYTHONPATH="$(CURDIR)"

.PHONY: help run quick test suite test-long conformance-sqlite conformance-postgresql test-pythons test-spark lint checks interpreted coverage bench bench-routing bench-growth bench-store bench-upstream bench-nodes bench-cluster bench-inprocess bench-connecting bench-delay bench-pipeline bench-source scale attack crash prove deb demo docs pictures pages fuzz packages setup clean

help:
	@sed -n 's/^#   //p' Makefile

setup:
	@.ci/environment dev

packages:
	@.ci/environment packages

run:
	@.ci/environment run
	@$(PY) -m canopy_mqtt.buildinfo | grep -q compiled || \
	    echo "canopy: the core is interpreted, so it serves at once, but slower; \`make setup\` compiles it in some minutes"
	@exec $(PY) -m canopy_mqtt serve $(ARGS)

# Four processes, since tests wait for something half of the time (how tests are dealt to them: tests/conftest.py). With six
# on two cores the whole took longer, and hashed passwords missed their time limit. PYTHONSAFEPATH is -P for them too.
# What pytest makes of the tests' files is kept for the next run, whatever the environment says of bytecode.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest --numprocesses=4
# Rooms of the broker whose coverage is measured (tool.coverage in pyproject.toml has the same).
# Nothing can measure compiled code, so the tests of COMPILED run a second time, interpreted from the source; those of
# PLAIN run once. With COVERAGE=1 each Python that they start measures what it runs; other tests would miss their limits.
COMPILED := core guards inprocess links net
PLAIN := client hooks observe security settings
# Tests elsewhere of compiled modules in these rooms, which run interpreted as well.
BESIDE := observe/sampling observe/trace security/test_bans.py store/shared store/test_journal_guard.py store/test_pages.py e2e/conformance/test_will.py \
    $(patsubst %,cluster/test_%.py,groups held messages retained subacks upstreams)
COVERAGE ?=
ifneq ($(COVERAGE),)
MEASURED := $(shell mkdir -p build/coverage)COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml COVERAGE_FILE=$(CURDIR)/build/coverage/data
endif
# The folders that hold the sources of what is installed, and this one for `tests` and `benchmarks`.
SOURCES := $(CURDIR)/broker:$(CURDIR)/loadtest:$(CURDIR)/pipeline:$(CURDIR)
INTERPRETED := PYTHONPATH="$(SOURCES)" PYTHONSAFEPATH=1 CANOPY_EXPECT=interpreted
INSTALLED := CANOPY_EXPECT="$$($(PY) -m canopy_mqtt.buildinfo)" PYTHONSAFEPATH=1 $(TESTS)

ROOM ?= core
# Tests of these import packages that the environment of the others lacks.
LARGE := docs e2e loadtest observe pipeline project record store
quick:
	@.ci/environment $(if $(filter $(LARGE),$(firstword $(subst /, ,$(ROOM)))),packages,quick)
	@$(INTERPRETED) $(PYTEST) tests/$(ROOM) -q -m "not long" $(ARGS)

# The linters need nothing that is built, and tests wait for something half of the time: they run side by side, and the
# tests go first. `CHECKS=` leaves the linters out, where they have run already.
CHECKS ?= checks
test: packages
	@$(MAKE) --no-print-directory -j2 suite $(CHECKS)

suite: setup
ifneq ($(COVERAGE),)
	@$(MEASURED) $(INSTALLED) $(PYTEST) -m "not long" $(PLAIN:%=tests/%)
	@$(INSTALLED) $(PYTEST) -m "not long" $(PLAIN:%=--ignore=tests/%) $(ARGS)
else
	@$(INSTALLED) $(PYTEST) -m "not long" $(ARGS)
endif

# A fault of the compiler's shows in one of the two runs alone. It needs nothing that is built.
interpreted: packages
	@$(MEASURED) $(INTERPRETED) $(PYTEST) -q -m "not long and not crowd" $(COMPILED:%=tests/%) $(BESIDE:%=tests/%) $(ARGS)

coverage: setup
	@PYTHONPATH=. $(PY) tools/coverage_floor.py

# Properties run here with all their examples (CANOPY_LONG), so they run in both. The conformance tests wait for most of
# their time, so two runs of them go side by side.
test-long: setup
	@$(MAKE) --no-print-directory -j2 --output-sync=target conformance-sqlite conformance-postgresql
	@echo "canopy: the long tests, and all examples of every property"
	@CANOPY_LONG=1 $(INSTALLED) $(PYTEST) --numprocesses=4 --timeout=600 -m "long or hypothesis" $(ARGS)
	@echo "canopy: a proof of two minutes, alone, since a machine that is busy cannot be judged"
	@$(PY) -m canopy_mqtt prove --broker canopy --seed 1 --minutes 2 || \
	    { [ $$? -eq 2 ] && echo "canopy: the proof could not judge: this machine was too busy"; }

conformance-sqlite:
	@echo "canopy: the conformance tests of mounted clients over WebSocket, with a store on disk"
	@CANOPY_E2E_SCHEME=ws CANOPY_E2E_MOUNT=tenant/ CANOPY_E2E_STORE=1 $(INSTALLED) $(PYTEST) --numprocesses=3 tests/e2e/conformance -q

conformance-postgresql:
	@echo "canopy: the conformance tests with a store in PostgreSQL"
	@CANOPY_E2E_STORE=postgresql $(INSTALLED) $(PYTEST) --numprocesses=3 tests/e2e/conformance -q

test-pythons:
	@.ci/pythons

# Beside the environment, not in it. Spark 3.5's py4j closes a socket late, and Python says so.
SPARK ?= 3.5.0
test-spark: setup
	@[ -d .spark/$(SPARK) ] || PATH="$$PATH:.uv/bin" uv pip install --quiet --python $(VENV)/bin/python --target .spark/$(SPARK) pyspark==$(SPARK)
	@$(INSTALLED):$(CURDIR)/.spark/$(SPARK) $(PYTEST) tests/pipeline -q -m long -W ignore::pytest.PytestUnraisableExceptionWarning $(ARGS)

lint: packages
	@$(MAKE) --no-print-directory checks

checks:
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@nice $(VENV)/bin/mypy --num-workers=2
	@PYTHONPATH="$(SOURCES)" nice $(VENV)/bin/lint-imports
	@$(PY) tools/conformance.py --check
	@PYTHONPATH="$(SOURCES)" $(PY) tools/reference.py --check

bench: setup
	@$(TESTS) $(PY) -m benchmarks network $(ARGS)

bench-routing bench-growth bench-store bench-upstream bench-nodes bench-cluster bench-inprocess bench-connecting bench-delay bench-pipeline bench-source: setup
	@$(TESTS) $(PY) -m benchmarks $(@:bench-%=%) $(ARGS)

scale: setup
	@$(TESTS) $(PY) -m benchmarks scale $(ARGS)

attack: setup
	@$(TESTS) $(PY) -m benchmarks attack $(ARGS)

crash: setup
	@CANOPY_CRASH=1 $(TESTS) PYTHONSAFEPATH=1 $(PYTEST) tests/e2e/store/test_live.py tests/e2e/store/test_shared.py tests/e2e/store/test_postgresql.py tests/e2e/test_links_killed.py tests/e2e/store/test_power_loss.py -q $(ARGS)

prove: setup
	@$(PY) -m canopy_mqtt prove --broker canopy $(ARGS)

deb:
	@.ci/environment quick
	@PYTHONPATH=. $(PY) -m tools.debian_package $(ARGS)

demo: setup
	@$(PY) tools/demo.py $(ARGS)

pictures: setup
	@PYTHONPATH=. $(PY) -m tools.pictures

# The variable silences an advertisement of the theme.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	@echo "canopy: the documentation is in site/index.html"

pages:
	@.ci/environment quick
	@PYTHONPATH="$(SOURCES)" $(PY) tools/reference.py --write

fuzz: setup
	@$(TESTS) $(PY) -m tests.fuzz $(ARGS)

clean:
	rm -rf .uv .venv-3.* $(VENV) build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis tests/e2e/js/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
