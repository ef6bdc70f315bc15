#!/usr/bin/env bash
# What ships with the bundled pairs next to their models, in pocket-work/heads/: CSD's memory, trained heads, and a
# datastore. An hour on one core for what belongs to one pair (PAIR=pocket-weak for another), then more than an hour for
# what belongs to the target alone. A command that was stopped goes on; what is there is not made again.
set -eu
. "$(dirname "$0")/common.sh"
pair=${PAIR:-pocket}

make_once $heads/memory-$pair \
  specbench calibrate --method csd --pair $pair --suite pocket-all --documents 500 --temperature 0.3 \
  --out $heads/memory-$pair

make_once $heads/judge-$pair.safetensors \
  specbench train --method judge --pair $pair --suite pocket --documents 150 --out $heads/judge-$pair.safetensors

make_once $heads/specdecpp-$pair.safetensors \
  specbench train --method specdecpp --pair $pair --suite pocket-all --documents 400 \
  --recipe inputs=state+confidence --recipe depth=1 --recipe weight=1 \
  --recipe learning_rate=0.001 --recipe epochs=12 --recipe patience=3 --out $heads/specdecpp-$pair.safetensors

make_once $heads/speckv-$pair.safetensors \
  specbench train --method speckv --pair $pair --suite pocket-all --documents 40 --out $heads/speckv-$pair.safetensors

if [ $pair != pocket ]; then exit; fi

make_once $heads/eagle3-pocket.safetensors \
  specbench train --method eagle3 --suite pocket --documents 2000 --recipe draft_vocabulary=1024 \
  --recipe answers=2 --recipe temperature=0.8 --recipe epochs=16 --recipe batch=32 \
  --recipe learning_rate=0.002 --recipe warmup=0.02 --out $heads/eagle3-pocket.safetensors

make_once $heads/kangaroo-pocket.safetensors \
  specbench train --method kangaroo --suite pocket --documents 1000 --recipe epochs=12 \
  --recipe learning_rate=0.002 --recipe warmup=0.02 --out $heads/kangaroo-pocket.safetensors

make_once $heads/del-pocket.safetensors \
  specbench train --method del --suite pocket --documents 200 --recipe epochs=8 --recipe batch=16 \
  --recipe learning_rate=0.002 --recipe warmup=0.02 --out $heads/del-pocket.safetensors

short="--suite pocket --documents 600 --recipe epochs=6 --recipe batch=32 --recipe learning_rate=0.002 --recipe warmup=0.02"
make_once $heads/medusa-pocket.safetensors \
  specbench train --method medusa $short --recipe heads=3 --recipe layers=6 --recipe output=target \
  --recipe loss=distillation --out $heads/medusa-pocket.safetensors

make_once $heads/hydra-pocket.safetensors \
  specbench train --method hydra $short --recipe heads=3 --recipe output=target --recipe weight_decay=0 \
  --recipe last_rate=0 --out $heads/hydra-pocket.safetensors

make_once $heads/mtp-pocket.safetensors \
  specbench train --method mtp --suite pocket --documents 300 --recipe steps=5 --recipe step_decay=0.8 --recipe epochs=4 \
  --recipe batch=32 --recipe learning_rate=0.002 --recipe warmup=0.02 --recipe autocast=false --recipe clip=0.5 \
  --out $heads/mtp-pocket.safetensors

for method in eagle hass; do
  make_once $heads/$method-pocket.safetensors \
    specbench train --method $method $short --recipe weight_decay=0 --recipe autocast=false \
    --out $heads/$method-pocket.safetensors
done

blocks="--suite pocket --documents 400 --recipe layers=2 --recipe features=3 --recipe block=8 --recipe batch=8"
blocks+=" --recipe loss=distillation --recipe decay=4 --recipe autocast=false"
for method in dflash dflare; do
  make_once $heads/$method-first.safetensors \
    specbench train --method $method $blocks --recipe anchors=16 --recipe temperature=0.8 --recipe epochs=3 \
    --recipe learning_rate=0.002 --out $heads/$method-first.safetensors
  make_once $heads/$method-pocket.safetensors \
    specbench train --method $method $blocks --recipe anchors=8 --recipe temperature=0 --recipe epochs=5 \
    --recipe learning_rate=0.0015 --warm-up $heads/$method-first.safetensors --out $heads/$method-pocket.safetensors
done

ranked="--suite pocket --documents 400 --recipe batch=8 --recipe warmup=0.02 --recipe autocast=false"
make_once $heads/specblock-first.safetensors \
  specbench train --method specblock $ranked --recipe draft_vocabulary=1024 --recipe epochs=4 \
  --recipe learning_rate=0.002 --out $heads/specblock-first.safetensors
make_once $heads/specblock-pocket.safetensors \
  specbench train --method specblock $ranked --recipe epochs=2 --recipe decay=0.5 --recipe learning_rate=0.0015 \
  --warm-up $heads/specblock-first.safetensors --out $heads/specblock-pocket.safetensors

make_once $heads/vocabtrim-pocket.safetensors \
  specbench train --method vocabtrim --suite pocket-all --documents 100 --out $heads/vocabtrim-pocket.safetensors

make_once $heads/datastore \
  specbench build-datastore --corpus pocket_gsm8k:calibration --corpus pocket_math500:calibration \
  --corpus pocket_humaneval:calibration --corpus pocket_cnndm:calibration \
  --documents 550 --pair pocket --out $heads/datastore
