#!/usr/bin/env bash
# Draft heads that were trained on different texts (TAPS): one on word problems and algebra, one on code and news, and one
# on all four, with equally many answers and updates, over the whole vocabulary, so that weights can be averaged. Then
# each alone and all combinations decode the same test documents, in runs/taps/. On a GPU the trainings take two minutes;
# on one core a quarter of an hour each, or more. What is there is not made again. DOCUMENTS=N of each task to learn from
# (1000, and half of that of four), EPOCHS=N passes (12), LIMIT=N documents of each task to decode (25); TRAIN_ONLY=1.
set -eu
. "$(dirname "$0")/common.sh"
out=runs/taps

# trained NAME DOCUMENTS TASK...
trained() {
  local head=$heads/$1-pocket.safetensors documents=$2 data=()
  shift 2
  for task in "$@"; do data+=(--data "pocket_$task:calibration"); done
  make_once "$head" \
    specbench train --method eagle3 "${data[@]}" --documents "$documents" --recipe draft_vocabulary=2048 \
    --recipe temperature=0.8 --recipe epochs="${EPOCHS:-12}" --recipe batch=32 --recipe learning_rate=0.002 \
    --recipe warmup=0.02 --out "$head"
}

trained taps-math "${DOCUMENTS:-1000}" gsm8k math500
trained taps-text "${DOCUMENTS:-1000}" humaneval cnndm
trained taps-mixed $((${DOCUMENTS:-1000} / 2)) gsm8k math500 humaneval cnndm
if [ -n "${TRAIN_ONLY:-}" ]; then exit; fi

both=$heads/taps-math-pocket.safetensors,$heads/taps-text-pocket.safetensors
methods=()
for name in math text mixed; do
  sed "s|value: auto|value: $heads/taps-$name-pocket.safetensors|" suites/methods/heads/eagle3.yaml > pocket-work/eagle3-$name.yaml
  methods+=(--method pocket-work/eagle3-$name.yaml)
done
for name in taps taps-route taps-average; do methods+=(--method "$name" --set "$name.heads=$both"); done
run_into $out --suite pocket "${methods[@]}" --limit "${LIMIT:-25}" --allow-code-execution
specbench compare $out
