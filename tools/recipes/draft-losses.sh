#!/usr/bin/env bash
# Which loss and which texts make a draft accepted: the weak draft of the bundled pair, trained with equal budgets on
# 720 calibration documents by every loss on every kind of text, three seeds each, then measured along the target's
# answers to 200 test documents, at temperatures 0 and 1. The table goes to runs/draft-losses/losses.csv. 111 trainings
# of one to three minutes on one core, seven on replayed blocks: three and a half hours. SEEDS, LOSSES, DATA and
# DOCUMENTS in the environment take a part of it, JOBS trains so many at a time; what is done is not repeated.
set -eu
. "$(dirname "$0")/common.sh"
out=runs/draft-losses
mkdir -p $out

# trained NAME SEED DATA LOSS: a draft. The target answers the documents of a seed once.
trained() {
  local draft=$out/$1-$2 answers=$out/answers-$2
  if [[ $3 = target || $3 = mix_request ]] && [ -e "$answers" ] && [ ! -e "$draft.answers" ]; then
    cp -r "$answers" "$draft.answers"
  fi
  make_once "$draft" \
    specbench train --method draft --pair pocket-weak --suite pocket --documents "${DOCUMENTS:-200}" --seed "$2" \
    --recipe data="$3" --recipe loss="$4" --recipe temperatures=1 --recipe learning_rate=0.0003 \
    --recipe epochs=2 --recipe autocast=false --out "$draft"
  if [ "$3" = target ] && [ ! -e "$answers" ]; then cp -r "$draft.answers" "$answers"; fi
}

# after_others: wait until fewer than JOBS trainings are under way.
after_others() { while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-1}" ]; do wait -n; done; }

drafts=()
for seed in ${SEEDS:-0 1 2}; do
  trained "target-fkl" "$seed" target fkl
  for data in ${DATA:-target draft mix_request mix_token ground_truth served}; do
    for loss in ${LOSSES:-ce fkl rkl jsd tvd tvd++}; do
      after_others
      trained "$data-$loss" "$seed" "$data" "$loss" &
      drafts+=("$out/$data-$loss-$seed")
    done
  done
  if [ -z "${DATA:-}${LOSSES:-}" ]; then
    after_others
    trained replay-split "$seed" replay split &
    drafts+=("$out/replay-split-$seed")
  fi
done
wait
specbench analyze losses "${drafts[@]}" --pair pocket-weak --suite pocket --documents 50
specbench analyze losses "${drafts[@]}" --pair pocket-weak --suite pocket --documents 50 --format csv > $out/losses.csv
