#!/usr/bin/env bash
# Two trainings that go on with a head that ships with `pocket`, and next to each a plain one of the same head by as many
# updates on the same documents: Draft-OPD for `dflash`, and GTO for `eagle3`. Then all heads decode the same test
# documents in runs/go-on-*. PART=dflash or PART=eagle3 does one of them. SEEDS="0 1", TEMPERATURES="1 0" to decode at,
# DOCUMENTS=N of each task to learn from (100), LIMIT=N of each task to decode (25). What is there is not made again.
set -eu
. "$(dirname "$0")/common.sh"
read -ra seeds <<< "${SEEDS:-0 1}"
shipped=suites/trained/heads
shared="--suite pocket --documents ${DOCUMENTS:-100} --recipe epochs=1 --recipe batch=8 --recipe temperature=1"
shared+=" --recipe warmup=0.05"

# decoded METHOD "NAMES" "SETTINGS" HEAD...: decode with the head as it ships and with others, named after their files;
# then τ next to that of the head as it ships, and of NAMES.
decoded() {
  local method=$1 names=$2 settings=$3 methods=(--method "$1")
  shift 3
  for setting in $settings; do methods+=(--set "$method.$setting"); done
  for head in "$@"; do
    sed "s|value: auto|value: $heads/$head.safetensors|" "$(find suites/methods -name "$method.yaml")" > pocket-work/$head.yaml
    methods+=(--method pocket-work/$head.yaml)
    for setting in $settings; do methods+=(--set "$head.$setting"); done
  done
  for temperature in ${TEMPERATURES:-1 0}; do
    run_into runs/go-on-$method-$temperature --suite pocket "${methods[@]}" --limit "${LIMIT:-25}" \
      --temperature $temperature --allow-code-execution
    python tools/recipes/gains.py runs/go-on-$method-$temperature "$method" $names
  done
}

made=()
if [ "${PART:-dflash}" = dflash ]; then
  for seed in "${seeds[@]}"; do
    own="$shared --seed $seed --recipe learning_rate=0.0003"
    make_once $heads/dflash-opd-$seed.safetensors \
      specbench train --method dflash --preset draft-opd $own --out $heads/dflash-opd-$seed.safetensors
    make_once $heads/dflash-plain-$seed.safetensors \
      specbench train --method dflash $own --recipe layers=2 --recipe features=3 --recipe block=8 --recipe anchors=32 \
      --recipe loss=distillation --recipe decay=4 --warm-up $shipped/dflash-pocket.safetensors \
      --out $heads/dflash-plain-$seed.safetensors
    made+=(dflash-opd-$seed dflash-plain-$seed)
  done
  decoded dflash "dflash-plain dflash-opd" "" "${made[@]}"
fi

made=()
if [ "${PART:-eagle3}" = eagle3 ]; then
  tree="total_tokens=16 top_k=4 depth=5"
  for seed in "${seeds[@]}"; do
    own="$shared --seed $seed --recipe learning_rate=0.0002 --recipe autocast=false"
    make_once $heads/eagle3-gto-$seed.safetensors \
      specbench train --method eagle3 --preset gto $own --recipe groups=2 --recipe group=4 $(printf -- '--recipe %s ' $tree) \
      --out $heads/eagle3-gto-$seed.safetensors
    make_once $heads/eagle3-plain-$seed.safetensors \
      specbench train --method eagle3 $own --warm-up $shipped/eagle3-pocket.safetensors \
      --out $heads/eagle3-plain-$seed.safetensors
    made+=(eagle3-gto-$seed eagle3-plain-$seed)
  done
  decoded eagle3 "eagle3-plain eagle3-gto" "$tree" "${made[@]}"
fi
