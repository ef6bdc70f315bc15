# `make run` and `make test` need Python 3.10 or newer and nothing else; everything is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
METHOD ?= csd
SUITE ?= math

.PHONY: run test fault-test fuzz determinism lock licences bench bench-peers reproduce-tables gpu-check pocket \
  pocket-members pocket-heads pocket-arbitrator pocket-arbitrator-ablations format clean
.DEFAULT_GOAL := run

# Everything that is installed is locked with its hashes in supply/; build tools first, since some dependencies come as
# source. torch for CPUs where pip is set up to find it, else the one for GPUs with its libraries, several GB on Linux.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
LOCKED := $(PIP) --require-hashes --no-build-isolation
LOCKS := $(foreach part,build torch-cpu torch-gpu tested,supply/$(part).txt)

$(STAMP): pyproject.toml $(LOCKS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "specbench needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(LOCKED) -r supply/build.txt
	$(LOCKED) -r supply/torch-cpu.txt 2>/dev/null || $(LOCKED) -r supply/torch-gpu.txt
	$(LOCKED) -r supply/tested.txt
	$(PIP) --no-build-isolation -e .
	@$(BIN)/python -m pip check --disable-pip-version-check
	@touch $@

run: $(STAMP)
	$(BIN)/specbench run --method $(METHOD) --suite $(SUITE)

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

# What `make test` has short parts of: faults and recovery from them (20 minutes), hostile files (20,000 of them), the same
# command twice for every method.
fault-test: $(STAMP)
	$(BIN)/python tests/faults/main.py

fuzz: $(STAMP)
	$(BIN)/python tests/fuzz.py --inputs 20000

determinism: $(STAMP)
	$(BIN)/python tests/determinism_long.py

# Locks anew what changed in pyproject.toml; all else keeps its version, but for UPGRADE='--upgrade' or
# UPGRADE='--upgrade-package NAME'.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	build/lock/bin/python supply/lock.py $(UPGRADE)

licences: $(STAMP)
	$(BIN)/python supply/licences.py

bench: $(STAMP)
	$(BIN)/specbench bench --documents 15
	$(BIN)/python tests/bench_compare.py
	$(BIN)/python tests/bench_csd.py
	$(BIN)/python tests/bench_lengths.py
	$(BIN)/python tests/bench_trees.py
	$(BIN)/python tests/bench_lookup.py
	$(BIN)/python tests/bench_datastore.py
	$(BIN)/python tests/bench_draft_output.py
	$(BIN)/python tests/bench_cos.py

# Engines of others that `make bench` compares with where they are installed; using specbench needs none of them.
bench-peers: $(STAMP)
	$(LOCKED) -r supply/peers.txt

# Runs what no earlier call has measured, then writes results/tables/; PAIR=, SUITE= and LIMIT= for your own. Figures of
# the bundled pair that come from no run of a table's methods: forward times (SpecDec++, Table 2), heads (its Table 3),
# complementarity, branches, batches and serving (CoSpec, Tables 2, 3, 9 and 11).
MEASURED := runs/tables/measured
COSPEC_TABLES := $(foreach table,2 3 9 11,$(MEASURED)/cospec-table$(table).csv)
reproduce-tables: $(STAMP) $(if $(PAIR),,$(MEASURED)/profile.csv $(MEASURED)/heads.csv $(COSPEC_TABLES))
	$(BIN)/specbench tables --check $(if $(PAIR),--pair $(PAIR)) $(if $(LIMIT),--limit $(LIMIT)) \
	  $(if $(filter command line environment,$(origin SUITE)),--suite $(SUITE))

$(MEASURED)/profile.csv: | $(STAMP)
	mkdir -p $(@D)
	$(BIN)/specbench profile --suite specdecpp --temperature 0 --out $(@:.csv=.json)

$(MEASURED)/heads.csv: | $(STAMP)
	mkdir -p $(@D)
	$(BIN)/specbench train --method specdecpp --suite pocket-all --documents 1000 --grid depth=0,1,2,3,4 \
	  --grid weight=1,3,6,12 --recipe learning_rate=0.001 --recipe epochs=10 --recipe patience=2 --out runs/tables/heads
	$(BIN)/specbench run $(if $(wildcard runs/long-drafts/manifest.json),--resume runs/long-drafts,--suite specdecpp \
	  --method specdecpp --set specdecpp.shortest=20 --set specdecpp.longest=20 --limit 30 --out runs/long-drafts)
	$(BIN)/specbench simulate runs/long-drafts --method specdecpp --heads runs/tables/heads --out $@

# A run that was stopped goes on.
COSPEC := runs/cospec
FEW := $(if $(LIMIT),--limit $(LIMIT))
$(COSPEC)/arbiters/summary.parquet: | $(STAMP)
	$(BIN)/specbench run $(if $(wildcard $(@D)/manifest.json),--resume $(@D),--suite cospec-arbiters $(FEW) --out $(@D))

$(COSPEC)/draft-alone/summary.parquet: | $(STAMP)
	$(BIN)/specbench run $(if $(wildcard $(@D)/manifest.json),--resume $(@D),--method member --baseline none \
	  --suite pocket $(FEW) --out $(@D))

$(MEASURED)/cospec-table2.csv: | $(COSPEC)/arbiters/summary.parquet $(COSPEC)/draft-alone/summary.parquet
	mkdir -p $(@D)
	$(BIN)/specbench analyze complementarity $(COSPEC)/arbiters --draft $(COSPEC)/draft-alone --out $@

$(MEASURED)/cospec-table3.csv: | $(COSPEC)/arbiters/summary.parquet
	mkdir -p $(@D)
	$(BIN)/specbench analyze counterfactual $(COSPEC)/arbiters --states 400 --out $@

$(MEASURED)/cospec-table9.csv: | $(STAMP)
	mkdir -p $(@D)
	$(BIN)/specbench throughput --method cospec --batch 2,4,8,16,32,64 --limit 4 --out $@

$(MEASURED)/cospec-table11.csv: | $(COSPEC)/arbiters/summary.parquet
	mkdir -p $(@D)
	$(BIN)/specbench serving $(COSPEC)/arbiters --out $@

# Uses the machine's own torch and transformers where there are some (as on GPU machines), else .venv.
gpu-check:
	@if $(PYTHON) -c 'import torch, transformers' 2>/dev/null; then $(PYTHON) -m specbench.gpu_check; \
	else $(MAKE) --no-print-directory $(STAMP) && $(BIN)/python -m specbench.gpu_check; fi

pocket: $(STAMP)
	$(BIN)/python -m specbench.pocket.build

# The four that decode together, from the shipped pair: about 35 minutes on one core; a stopped call goes on.
pocket-members: $(STAMP)
	$(BIN)/python -m specbench.pocket.members

# What ships with the pair beside its models, into pocket-work/heads/: two hours on one core, most of them for eagle3; a
# stopped call goes on.
HEADS := pocket-work/heads
pocket-heads: $(foreach kind,judge specdecpp eagle3 vocabtrim,$(HEADS)/$(kind)-pocket.safetensors) $(HEADS)/datastore

$(HEADS)/judge-pocket.safetensors: | $(STAMP)
	$(BIN)/specbench train --method judge --suite pocket --documents 150 --out $@

$(HEADS)/specdecpp-pocket.safetensors: | $(STAMP)
	$(BIN)/specbench train --method specdecpp --suite pocket-all --documents 1000 --recipe inputs=state+confidence \
	  --recipe depth=1 --recipe weight=1 --recipe learning_rate=0.001 --recipe epochs=12 --recipe patience=3 \
	  --out $@

$(HEADS)/eagle3-pocket.safetensors: | $(STAMP)
	$(BIN)/specbench train --method eagle3 --suite pocket --documents 2000 --recipe draft_vocabulary=1024 \
	  --recipe answers=2 --recipe temperature=0.8 --recipe epochs=16 --recipe batch=32 --recipe learning_rate=0.002 \
	  --recipe warmup=0.02 --out $@

$(HEADS)/vocabtrim-pocket.safetensors: | $(STAMP)
	$(BIN)/specbench train --method vocabtrim --suite pocket-all --documents 100 --out $@

$(HEADS)/datastore: | $(STAMP)
	$(BIN)/specbench build-datastore $(foreach task,gsm8k math500 humaneval cnndm,--corpus pocket_$(task):calibration) \
	  --documents 550 --pair pocket --out $@

# The arbitrator that ships with the pair: warm-up and reinforcement on calibration documents of one family, less than an
# hour on one core. A stopped call goes on.
ONE_FAMILY := --data pocket_gsm8k:calibration --documents 1500
pocket-arbitrator: $(HEADS)/cospec-pocket.safetensors

$(HEADS)/cospec-sft-pocket.safetensors: | $(STAMP)
	$(BIN)/specbench train --method cospec --stage sft $(ONE_FAMILY) --recipe learning_rate=0.002 --recipe epochs=4 \
	  --recipe batch=32 --out $@

$(HEADS)/cospec-pocket.safetensors: $(HEADS)/cospec-sft-pocket.safetensors
	$(BIN)/specbench train --method cospec --stage rl --warm-up $< $(ONE_FAMILY) --recipe updates=40 \
	  --recipe prompts=24 --recipe group=8 --recipe epochs=2 --recipe learning_rate=0.0005 --out $@

# Arbitrators whose training lacks a part (CoSpec, Table 6), and `whole`, which lacks none; a fifth of the updates of the
# one that ships, half an hour on one core. The suite cospec-rewards runs them. One that breaks down stops by itself and
# leaves the others: without the risk penalty a policy learns to keep everything.
ABLATIONS := $(HEADS)/ablations
LACKING := no-judge draft-judge terminal-only no-length no-risk no-rejection no-rebalancing whole
pocket-arbitrator-ablations: $(foreach one,sft-only $(LACKING),$(ABLATIONS)/$(one).safetensors)

WARM_UP := $(HEADS)/cospec-sft-pocket.safetensors
$(ABLATIONS)/no-judge.safetensors: WARM_UP := none
$(ABLATIONS)/draft-judge.safetensors: WARM_UP := $(ABLATIONS)/draft-judged.safetensors
$(ABLATIONS)/draft-judge.safetensors: $(ABLATIONS)/draft-judged.safetensors
$(ABLATIONS)/terminal-only.safetensors: LACKS := --recipe length=0 --recipe surprisal=0 --recipe rejection=0
$(ABLATIONS)/no-length.safetensors: LACKS := --recipe length=0
$(ABLATIONS)/no-risk.safetensors: LACKS := --recipe surprisal=0
$(ABLATIONS)/no-rejection.safetensors: LACKS := --recipe rejection=0
$(ABLATIONS)/no-rebalancing.safetensors: LACKS := --recipe rebalance=false

$(ABLATIONS)/sft-only.safetensors: $(HEADS)/cospec-sft-pocket.safetensors
	mkdir -p $(@D) && cp $< $@

$(ABLATIONS)/draft-judged.safetensors: | $(STAMP)
	$(BIN)/specbench train --method cospec --stage sft --judge bundled:draft $(ONE_FAMILY) --recipe learning_rate=0.002 \
	  --recipe epochs=4 --recipe batch=32 --out $@

$(LACKING:%=$(ABLATIONS)/%.safetensors): | $(HEADS)/cospec-sft-pocket.safetensors
	-$(BIN)/specbench train --method cospec --stage rl --warm-up $(WARM_UP) $(ONE_FAMILY) $(LACKS) --recipe updates=8 \
	  --recipe prompts=24 --recipe group=8 --recipe epochs=2 --recipe learning_rate=0.0005 --out $@

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
