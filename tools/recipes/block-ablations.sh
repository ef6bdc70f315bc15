#!/usr/bin/env bash
# What parts of a block drafter are worth: heads of `dflash` that differ in one thing from the first, `dflash-base` (two
# layers, slot k weighs exp(-(k - 1) / 4)): one layer or four, a steeper decay of the weights or none. Each learns from the
# same answers by as many updates, from random weights, with two seeds. Then all of them decode the same test documents
# in runs/block-ablations-T, and runs/block-ablations-T.csv has τ of each next to the others. SEEDS="0 1", TEMPERATURES="0", EPOCHS=3,
# DOCUMENTS=N of each task to learn from (300), LIMIT=N of each task to decode (15). What is there is not made again.
set -eu
. "$(dirname "$0")/common.sh"
read -ra seeds <<< "${SEEDS:-0 1}"
names="dflash-base dflash-layers-1 dflash-layers-4 dflash-decay-2 dflash-decay-none"

# own NAME: the layers of a head, and the decay of its slots' weights.
own() {
  case $1 in
    dflash-layers-1) echo "1 4" ;;
    dflash-layers-4) echo "4 4" ;;
    dflash-decay-2) echo "2 2" ;;
    dflash-decay-none) echo "2 1000000" ;;
    *) echo "2 4" ;;
  esac
}

methods=()
for seed in "${seeds[@]}"; do
  for name in $names; do
    head=$heads/$name-$seed.safetensors answers=$heads/block-ablations-$seed.answers
    read -r layers decay <<< "$(own "$name")"
    if [ -e "$answers" ] && [ ! -e "${head%.safetensors}.answers" ]; then cp -r "$answers" "${head%.safetensors}.answers"; fi
    make_once "$head" \
      specbench train --method dflash --suite pocket --documents "${DOCUMENTS:-300}" --seed "$seed" \
      --recipe layers="$layers" --recipe decay="$decay" --recipe features=3 --recipe block=8 --recipe batch=8 \
      --recipe loss=distillation --recipe anchors=16 --recipe epochs="${EPOCHS:-3}" --recipe learning_rate=0.002 --out "$head"
    if [ ! -e "$answers" ]; then cp -r "${head%.safetensors}.answers" "$answers"; fi
    sed "s|value: auto|value: $head|" suites/methods/blocks/dflash.yaml > pocket-work/$name-$seed.yaml
    methods+=(--method pocket-work/$name-$seed.yaml)
  done
done
for temperature in ${TEMPERATURES:-0}; do
  run_into runs/block-ablations-$temperature --suite pocket "${methods[@]}" --limit "${LIMIT:-15}" \
    --temperature $temperature --untimed --allow-code-execution
  python tools/recipes/gains.py runs/block-ablations-$temperature $names | tee runs/block-ablations-$temperature.csv
done
