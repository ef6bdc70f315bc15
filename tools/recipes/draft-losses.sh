#!/usr/bin/env bash
# Which loss and which texts make a draft accepted: the weak draft of the bundled pair, trained with equal budgets on
# 720 calibration documents by every loss on every kind of text, three seeds each, then decoded with on 80 documents that
# were held out. Tables of α, τ and speedup by task go to runs/draft-losses/: SEED-T.csv of both temperatures, and
# SEED-drafts.csv with α as 1 - TVD predicts it. 75 trainings of about two minutes and 150 runs of about one: five to six
# hours on one core. SEEDS, LOSSES, DATA and DOCUMENTS in the environment take a part of it; what is done is not repeated.
set -eu
. "$(dirname "$0")/common.sh"
out=runs/draft-losses
mkdir -p $out

# trained NAME SEED DATA LOSS: a draft, and runs with it. The target answers the documents of a seed once.
trained() {
  local draft=$out/$1-$2 shared=$out/answers-$2
  if [[ $3 = target || $3 = mix_request ]] && [ -e "$shared" ] && [ ! -e "$draft.answers" ]; then
    cp -r "$shared" "$draft.answers"
  fi
  make_once "$draft" \
    specbench train --method draft --pair pocket-weak --suite pocket --documents "${DOCUMENTS:-200}" --seed "$2" \
    --recipe data="$3" --recipe loss="$4" --recipe temperatures=1 --recipe learning_rate=0.0003 \
    --recipe epochs=2 --recipe autocast=false --out "$draft"
  if [ "$3" = target ] && [ ! -e "$shared" ]; then cp -r "$draft.answers" "$shared"; fi
  if [ ! -e "$out/held-out-$2.jsonl" ]; then cp "$draft.held-out.jsonl" "$out/held-out-$2.jsonl"; fi
  for temperature in 0 1; do
    run_into "$draft-T$temperature" --target bundled:target --draft "$draft" --method sps \
      --prompts "$out/held-out-$2.jsonl" --temperature $temperature --seed "$2"
  done
}

for seed in ${SEEDS:-0 1 2}; do
  names=()
  for data in ${DATA:-target draft mix_request served}; do
    for loss in ${LOSSES:-ce fkl rkl jsd tvd tvd++}; do
      trained "$data-$loss" "$seed" "$data" "$loss"
      names+=("$out/$data-$loss-$seed")
    done
  done
  if [ -z "${DATA:-}${LOSSES:-}" ]; then
    trained replay-split "$seed" replay split
    names+=("$out/replay-split-$seed")
  fi
  for temperature in 0 1; do
    run_into "$out/ships-$seed-T$temperature" --pair pocket-weak --method sps \
      --prompts "$out/held-out-$seed.jsonl" --temperature $temperature --seed "$seed"
    specbench compare "$out/ships-$seed-T$temperature" "${names[@]/%/-T$temperature}" \
      --columns alpha,tau,tau_interval,speedup_decode --format csv > "$out/$seed-T$temperature.csv"
  done
  specbench analyze drafts "$out/ships-$seed-T1" "${names[@]/%/-T1}" --format csv > "$out/$seed-drafts.csv"
done
