# Headwater's commands; `make help` lists them. Every one runs the tools of .venv by absolute
# path, so no shell has to be prepared, and nothing here needs a network once `make venv` has run.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
VENV := $(ROOT)/.venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
STAMP := $(VENV)/.installed

# The interpreter that .venv is made from, and only that.
BASE_PYTHON ?= python3
# For tests that compute, a worker for each core of CI; `make test` takes more of them, because
# many of its tests wait. PYTEST_ARGS narrows a run: make test PYTEST_ARGS="-k isr".
CORES ?= 2
PYTEST_WORKERS ?= 5
PYTEST_ARGS ?=
BENCH_ARGS ?=
DEMO_ARGS ?=
MINUTES ?= 5
ROUNDS ?= 20
CRASH_ARGS ?=
DAMAGE_ARGS ?=
FUZZ_ARGS ?=
PLANT_ARGS ?=
RUN ?=
RACE_ARGS ?= --commits 200
SIM_ARGS ?=
SEED ?=
SEEDS ?=
SIM ?=

# Spark starts Python by name for its workers: it has to be this one, on the driver and in tasks.
export PYSPARK_PYTHON := $(PYTHON)
export PYSPARK_DRIVER_PYTHON := $(PYTHON)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start some hundred Python processes; without bytecode each would compile our modules again,
# which is 0.2 s of CPU for a broker. Images of containers often set this variable.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## list the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' \
		$(ROOT)/Makefile

.PHONY: venv
venv: $(STAMP) ## make .venv from requirements.lock (every hash checked) and install Headwater in it

# Satisfied requirements are left alone, so after an edit of pyproject.toml this takes seconds and
# no network; a package that left the lock stays until `make clean`.
$(STAMP): $(ROOT)/requirements.lock $(ROOT)/pyproject.toml
	@cd $(ROOT)
	echo "Installing the packages of requirements.lock into .venv: about a minute the first time"
	test -x $(PYTHON) || $(BASE_PYTHON) -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --require-hashes --requirement requirements.lock
	$(PYTHON) -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# Classes that the JVMs of tests map instead of loading each anew: 5 to 9 s of CPU less for each JVM.
# Made by running Spark once, which takes half a minute; a JVM does without it if need be.
CLASSES := $(VENV)/classes.jsa

$(CLASSES): $(STAMP)
	@cd $(ROOT)
	$(PYTHON) tests/lib/lean_jvm.py $@
	touch $@

# Airflow cannot share an environment with PySpark, so it has its own; its tasks use ours.
AIRFLOW_VENV := $(ROOT)/.airflow-venv
AIRFLOW_STAMP := $(AIRFLOW_VENV)/.installed

$(AIRFLOW_STAMP): $(ROOT)/airflow_dags/requirements.lock
	@cd $(ROOT)
	echo "Installing Airflow into .airflow-venv: some minutes, once; the demo's last step needs it"
	test -x $(AIRFLOW_VENV)/bin/python || $(BASE_PYTHON) -m venv $(AIRFLOW_VENV)
	$(AIRFLOW_VENV)/bin/python -m pip install --quiet --require-hashes \
		--requirement airflow_dags/requirements.lock
	touch $@

.PHONY: demo
demo: $(STAMP) $(AIRFLOW_STAMP) ## run the guided tour on this machine, start to finish
	@cd $(ROOT)
	DEMO_AIRFLOW=$(AIRFLOW_VENV)/bin/airflow $(PYTHON) -m headwater.demo $(DEMO_ARGS)

# Tests sync many small files and read them back at once. So their folders lie in memory where there
# is room, and those of tests that failed are here in the end (tests/lib/memory_folders.py).
FAILED := --failed-to=out/failed

# Each worker has a lane (tests/lib/lanes.py): two have a session of Spark, so more workers do not
# mean more JVMs. HEADWATER_TEST_ORDER=SEED repeats the order of a run. What costs most is left out,
# and simulations have few seeds; with WHOLE=1, or any PYTEST_ARGS, nothing is left out.
WHOLE ?= $(PYTEST_ARGS)
.PHONY: test
test: export HEADWATER_TEST_LEFT_OUT = $(if $(WHOLE),,longer)
test: export HEADWATER_SIM_SEEDS ?= $(if $(WHOLE),,4)
test: $(STAMP) $(CLASSES) ## run the tests but the longest; WHOLE=1 runs those, too (PYTEST_ARGS="tests/unit -k isr")
	@cd $(ROOT)
	$(PYTHON) -m pytest -n $(PYTEST_WORKERS) --dist loadgroup -m "not program" \
		$(FAILED) $(PYTEST_ARGS)

.PHONY: test-list
test-list: $(STAMP) $(CLASSES) ## measure which tests `make test` leaves out, and write tests/longer.txt
	@cd $(ROOT)
	$(MAKE) --no-print-directory test PYTEST_ARGS=--cpu-report
	PYTHONPATH=tests/lib $(PYTHON) -m quickkit.longer out/cpu.json

# The notebook in three modes, the demo and the race start a dozen JVMs of their own. They are a lane
# beside `make test`; `.ci/run` runs both.
.PHONY: programs
programs: $(STAMP) $(CLASSES) ## run the tests that are whole programs: notebook, demo, race
	@cd $(ROOT)
	$(PYTHON) -m pytest -n $(CORES) --dist load -m program tests/integration/test_notebook.py \
		tests/integration/test_demo.py tests/integration/spark_jobs/jvm/test_race.py \
		$(FAILED) $(PYTEST_ARGS)

QUICK_FOLDERS := tests/unit tests/property tests/contract tests/golden tests/sim
QUICK := -m "not (integration or spark or slow)"
.PHONY: quick
quick: export HEADWATER_TEST_LEFT_OUT := slower
quick: $(STAMP) ## run in a minute what needs no servers, and a few seeds of each simulation
	@cd $(ROOT)
	rm -rf out/failed
	HEADWATER_TEST_EXAMPLES=10 HEADWATER_SIM_SEEDS=4 $(PYTHON) tests/lib/quickkit/shards.py $(CORES) $(QUICK_FOLDERS) \
		-- -q $(QUICK) $(FAILED)/{share} -o cache_dir=.pytest_cache/{share} $(PYTEST_ARGS)

.PHONY: quick-list
quick-list: $(STAMP) ## measure which tests are too slow for `make quick`, and write tests/slower.txt
	@cd $(ROOT)
	HEADWATER_TEST_EXAMPLES=10 HEADWATER_SIM_SEEDS=4 $(PYTHON) -m pytest -q -n 1 \
		--junitxml=out/quick.xml $(QUICK) $(QUICK_FOLDERS) $(FAILED)
	PYTHONPATH=tests/lib $(PYTHON) -m quickkit.slower out/quick.xml

# Without a JVM and without servers in processes of their own, whose lines would not be counted.
.PHONY: cover
cover: $(STAMP) ## print how many of the product's lines the fast tests run; no gate
	@cd $(ROOT)
	mkdir -p out
	HEADWATER_TEST_EXAMPLES=10 HEADWATER_SIM_SEEDS=8 $(PYTHON) -m coverage run -m pytest -q \
		$(QUICK) $(QUICK_FOLDERS) $(PYTEST_ARGS)
	$(PYTHON) -m coverage report

.PHONY: examples
examples: $(STAMP) $(CLASSES) ## run each program of examples/ and compare what it prints with what it says
	@cd $(ROOT)
	HEADWATER_TEST_ALL_EXAMPLES=1 $(PYTHON) -m pytest tests/integration/test_examples.py \
		$(PYTEST_ARGS)

.PHONY: test-airflow
test-airflow: $(STAMP) $(AIRFLOW_STAMP) ## run the DAGs' tests in Airflow's own environment
	@cd $(ROOT)
	$(AIRFLOW_VENV)/bin/python -m pytest -c tests/airflow/pytest.ini tests/airflow $(PYTEST_ARGS)

# python-liftbridge of 2020 needs protobuf 3, so it has an environment of its own. The Go program is
# built from Go's module cache where Go is; elsewhere its tests are skipped, and say so.
LIFTBRIDGE_VENV := $(ROOT)/.liftbridge-venv
LIFTBRIDGE_STAMP := $(LIFTBRIDGE_VENV)/.installed

$(LIFTBRIDGE_STAMP): $(ROOT)/tests/peers/python/requirements.lock
	@cd $(ROOT)
	test -x $(LIFTBRIDGE_VENV)/bin/python || $(BASE_PYTHON) -m venv $(LIFTBRIDGE_VENV)
	$(LIFTBRIDGE_VENV)/bin/python -m pip install --quiet --require-hashes \
		--requirement tests/peers/python/requirements.lock
	touch $@

.PHONY: liftbridge-python
liftbridge-python: $(LIFTBRIDGE_STAMP) ## make the environment of python-liftbridge; `make test` runs its tests if it is there

.PHONY: test-liftbridge
test-liftbridge: $(STAMP) $(LIFTBRIDGE_STAMP) ## run unmodified Liftbridge clients, Go's and Python's, on one broker and on three
	@cd $(ROOT)
	HEADWATER_TEST_LIFTBRIDGE=1 $(PYTHON) -m pytest -n $(CORES) --dist loadgroup \
		tests/integration/liftbridge $(PYTEST_ARGS)

.PHONY: check
check: $(STAMP) ## lint, formatting, types, import contracts, spelling, project file, stubs
	@cd $(ROOT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml
	$(PYTHON) tools/protos.py --check

.PHONY: format
format: $(STAMP) ## let ruff repair what it can and format the rest
	@cd $(ROOT)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# The site's tools have an environment of their own, made as the other two are. Once it is there,
# the build needs no network: no font, script or inventory comes from elsewhere.
DOCS_VENV := $(ROOT)/.docs-venv
DOCS_STAMP := $(DOCS_VENV)/.installed

$(DOCS_STAMP): $(ROOT)/docs/requirements.lock
	@cd $(ROOT)
	test -x $(DOCS_VENV)/bin/python || $(BASE_PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --require-hashes \
		--requirement docs/requirements.lock
	touch $@

.PHONY: docs
docs: $(STAMP) $(DOCS_STAMP) ## build the site of docs/ and the docstrings: build/site/index.html
	@cd $(ROOT)
	$(PYTHON) -m tools.command_page build/commands.md
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict

.PHONY: bench
bench: $(STAMP) ## run the benchmarks (BENCH_ARGS="...")
	@cd $(ROOT)
	$(PYTHON) -m bench $(BENCH_ARGS)

# What draws plots has an environment of its own, as the site's tools have.
BENCH_VENV := $(ROOT)/.bench-venv
BENCH_STAMP := $(BENCH_VENV)/.installed

$(BENCH_STAMP): $(ROOT)/bench/requirements.lock
	@cd $(ROOT)
	test -x $(BENCH_VENV)/bin/python || $(BASE_PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --require-hashes \
		--requirement bench/requirements.lock
	touch $@

# An interrupted run goes on where it was; what is finished is kept in out/bench/all.json.
.PHONY: bench-all
bench-all: $(STAMP) $(BENCH_STAMP) ## run every benchmark with every peer in one sitting (hours; Java, Maven, Go)
	@cd $(ROOT)
	$(PYTHON) -m bench --all $(BENCH_ARGS)
	$(BENCH_VENV)/bin/python -m bench.report.plots

.PHONY: bench-plots
bench-plots: $(BENCH_STAMP) ## draw a kept run into docs/plots (RUN=FILE; by default the newest of bench-all)
	@cd $(ROOT)
	$(BENCH_VENV)/bin/python -m bench.report.plots $(RUN)

.PHONY: bench-smoke
bench-smoke: $(STAMP) ## run a few benchmarks small, and name the ratios that moved since the last such run
	@cd $(ROOT)
	$(PYTHON) -m bench --smoke $(BENCH_ARGS)

.PHONY: bench-spark
bench-spark: $(STAMP) ## run Spark's benchmarks against Kafka, delta-spark and the native scan
	@cd $(ROOT)
	$(PYTHON) -m bench --only spark spark_log planning tiering --kafka $(BENCH_ARGS)

.PHONY: bench-cluster
bench-cluster: $(STAMP) ## run the benchmarks of three brokers against JetStream R3 and Kafka RF3
	@cd $(ROOT)
	$(PYTHON) -m bench --kafka --only cluster_publish cluster_latency cluster_failover \
		cluster_cut cluster_partitions cluster_raft $(BENCH_ARGS)

.PHONY: bench-liftbridge
bench-liftbridge: $(STAMP) ## measure Liftbridge's API beside Liftbridge 1.9.0, by its Go client
	@cd $(ROOT)
	$(PYTHON) -m bench --only liftbridge $(BENCH_ARGS)

.PHONY: bench-secure
bench-secure: $(STAMP) ## measure what TLS, identity and authorization cost, beside the same without
	@cd $(ROOT)
	$(PYTHON) -m bench --only secure $(BENCH_ARGS)

.PHONY: crash
crash: $(STAMP) ## kill brokers mid-write and audit what survived (ROUNDS=20)
	@cd $(ROOT)
	$(PYTHON) tests/crash/run.py --rounds $(ROUNDS)
	$(PYTHON) tests/damage/run.py --only ':twin|:slept'

.PHONY: crash-stream
crash-stream: $(STAMP) ## kill a streaming query and all it needs, and audit its copy (ROUNDS=20)
	@cd $(ROOT)
	$(PYTHON) tests/crash/stream.py --rounds $(ROUNDS) $(CRASH_ARGS)

.PHONY: damage
damage: $(STAMP) ## damage every file and folder of a broker and its tables, and look (DAMAGE_ARGS="--only ledger")
	@cd $(ROOT)
	$(PYTHON) tests/damage/run.py $(DAMAGE_ARGS)

.PHONY: fuzz
fuzz: $(STAMP) ## bytes that nobody should send, for every decoder and every door (MINUTES=5 FUZZ_ARGS="--part doors")
	@cd $(ROOT)
	$(PYTHON) tests/fuzz/run.py --minutes $(MINUTES) $(FUZZ_ARGS)

.PHONY: chaos
chaos: $(STAMP) ## real brokers killed, paused, cut off, filled up and wiped under load (MINUTES=5 CHAOS_ARGS=--secure)
	@cd $(ROOT)
	$(PYTHON) tests/chaos/run.py --minutes $(MINUTES) $(CHAOS_ARGS)

.PHONY: crash-cluster
crash-cluster: $(STAMP) ## kill -9 every broker of a cluster under load, again and again (ROUNDS=20)
	@cd $(ROOT)
	$(PYTHON) tests/chaos/run.py --minutes 0 --brokers 3 --only "kill every broker" \
		--times $(ROUNDS) $(CHAOS_ARGS)

.PHONY: plant
plant: $(STAMP) ## plant bugs in the product's lines; fast tests have to notice each (PLANT_ARGS="--only core")
	@cd $(ROOT)
	$(PYTHON) tests/plants/lines.py $(PLANT_ARGS)

.PHONY: plant-drills
plant-drills: $(STAMP) ## plant bugs in the product; crash, crash-stream and chaos have to find each (PLANT_ARGS="--only chaos")
	@cd $(ROOT)
	$(PYTHON) tests/plants/run.py $(PLANT_ARGS)

.PHONY: race
race: $(STAMP) ## Spark drivers and delta-rs append to one table on S3; none may be lost
	@cd $(ROOT)
	$(PYTHON) tests/race/run.py $(RACE_ARGS)

.PHONY: notebook
notebook: $(STAMP) ## run docs/notebook.py in classic Spark, Spark Connect and on a cluster
	@cd $(ROOT)
	$(PYTHON) tests/notebook/run.py --mode all

# `make test` runs a few seeds of each simulation only.
.PHONY: sim
sim: SEEDS = 1000
sim: $(STAMP) ## run the seeded simulations (1,000 seeds, or SEEDS=5000; SIM=house SEED=7 replays one)
	@cd $(ROOT)
	HEADWATER_SIM_SEED=$(SEED) HEADWATER_SIM_SEEDS=$(SEEDS) \
		$(PYTHON) -m pytest $(if $(SEED),-m seeds,-n $(CORES)) \
		tests/sim$(if $(SIM),/test_$(SIM)_sim.py) $(PYTEST_ARGS)

.PHONY: nightly
nightly: MINUTES = 120
nightly: SEEDS = 200000
nightly: $(STAMP) ## all simulations for hours, with counts (MINUTES=120 SEEDS=200000)
	@cd $(ROOT)
	$(PYTHON) tests/sim/nightly.py --minutes $(MINUTES) --seeds $(SEEDS) $(SIM_ARGS)

# Each hunt begins at the seed that is known to show the mutant. Known seeds that show it no longer
# are listed at the end, with those that do.
.PHONY: mutants
mutants: $(STAMP) ## break the log, replication and Raft on purpose; the simulations must notice
	@cd $(ROOT)
	HEADWATER_WHOLE_HUNT=1 $(PYTHON) -m pytest -n $(CORES) --dist worksteal tests/sim \
		-k "mutant or correction_is_needed or situation" $(PYTEST_ARGS)

.PHONY: protos
protos: $(STAMP) ## generate the Python stubs of proto/ into broker/wire
	@cd $(ROOT)
	$(PYTHON) tools/protos.py

# The resolver has a throw-away environment: neither tests nor the product need it.
.PHONY: lock
lock: ## resolve the requirements of all environments again (needs a network)
	@cd $(ROOT)
	test -x .lock-venv/bin/uv || $(BASE_PYTHON) -m venv .lock-venv
	.lock-venv/bin/python -m pip install --quiet uv==0.13.8
	.lock-venv/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --quiet \
		--custom-compile-command "make lock" $(LOCK_ARGS) --output-file requirements.lock
	.lock-venv/bin/uv pip compile airflow_dags/requirements.in --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --quiet \
		--custom-compile-command "make lock" $(LOCK_ARGS) \
		--output-file airflow_dags/requirements.lock
	.lock-venv/bin/uv pip compile docs/requirements.in --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --quiet \
		--custom-compile-command "make lock" $(LOCK_ARGS) --output-file docs/requirements.lock
	.lock-venv/bin/uv pip compile bench/requirements.in --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --quiet \
		--custom-compile-command "make lock" $(LOCK_ARGS) --output-file bench/requirements.lock
	.lock-venv/bin/uv pip compile tests/peers/python/requirements.in --universal \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --quiet \
		--custom-compile-command "make lock" $(LOCK_ARGS) \
		--output-file tests/peers/python/requirements.lock

.PHONY: release-check
release-check: $(STAMP) ## check that the stated version may be released; build it into dist/
	@cd $(ROOT)
	$(PYTHON) -m tools.release
	$(PYTHON) -m pytest -q tests/packaging

.PHONY: release-sign
release-sign: $(STAMP) ## sign the files in dist/ with an SSH key (KEY=FILE)
	@cd $(ROOT)
	$(PYTHON) -m tools.signing $(KEY)

.PHONY: audit
audit: $(STAMP) ## compare what is locked with known advisories (ADVISORIES=all.zip KEEP=1)
	@cd $(ROOT)
	$(PYTHON) -m tools.audit $(if $(ADVISORIES),--advisories $(ADVISORIES)) $(if $(KEEP),--keep)

.PHONY: clean
clean: ## remove .venv, builds and caches; sources and data stay
	@cd $(ROOT)
	rm -rf .venv .airflow-venv .docs-venv .bench-venv .liftbridge-venv .lock-venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
