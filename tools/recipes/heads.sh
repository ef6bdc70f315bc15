#!/usr/bin/env bash
# What ships with the bundled pair beside its models: trained heads and a datastore, in pocket-work/heads/. Two hours on
# one core, most of them for eagle3. A command that was stopped goes on; what is there is not trained again.
set -eu
. "$(dirname "$0")/common.sh"

make_once $heads/judge-pocket.safetensors \
  specbench train --method judge --suite pocket --documents 150 --out $heads/judge-pocket.safetensors

make_once $heads/specdecpp-pocket.safetensors \
  specbench train --method specdecpp --suite pocket-all --documents 1000 \
  --recipe inputs=state+confidence --recipe depth=1 --recipe weight=1 \
  --recipe learning_rate=0.001 --recipe epochs=12 --recipe patience=3 --out $heads/specdecpp-pocket.safetensors

make_once $heads/eagle3-pocket.safetensors \
  specbench train --method eagle3 --suite pocket --documents 2000 --recipe draft_vocabulary=1024 \
  --recipe answers=2 --recipe temperature=0.8 --recipe epochs=16 --recipe batch=32 \
  --recipe learning_rate=0.002 --recipe warmup=0.02 --out $heads/eagle3-pocket.safetensors

make_once $heads/vocabtrim-pocket.safetensors \
  specbench train --method vocabtrim --suite pocket-all --documents 100 --out $heads/vocabtrim-pocket.safetensors

make_once $heads/datastore \
  specbench build-datastore --corpus pocket_gsm8k:calibration --corpus pocket_math500:calibration \
  --corpus pocket_humaneval:calibration --corpus pocket_cnndm:calibration \
  --documents 550 --pair pocket --out $heads/datastore
