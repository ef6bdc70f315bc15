#!/usr/bin/env bash
# What methods are worth under load, on the default pair: CoSpec's Table 10 with others next to it, draft lengths by the
# number of texts, and how far a projection is from the server, in runs/load/. Half an hour on two idle cores; a command
# that was stopped goes on.
set -eu
. "$(dirname "$0")/common.sh"
out=runs/load
mkdir -p $out/methods
common="--suite pocket --runtime static --rows 16"

# shellcheck disable=SC2086 # $common is several words
specbench load --method cospec --method sps --method csd --method specdecpp-pocket --rate 2,4,8,12,16 --to-saturation \
  $common --requests 48 --repeats 4 --out $out/methods-by-rate --plot $out/methods-by-rate.svg \
  --cells $out/cospec-table10.csv

fixed=()
for gamma in 2 4 8; do
  cat > $out/methods/sps-$gamma.yaml <<YAML
description: Speculative sampling with $gamma draft tokens (lossless)
paper: SpS (arXiv 2211.17192, 2302.01318)
method: sps
settings:
  gamma: {value: $gamma, source: "our inference: a point of the curve of fixed lengths"}
  stop_at_eos: {value: false, source: "our inference: as in sps"}
YAML
  fixed+=(--method "$out/methods/sps-$gamma.yaml")
done

# The schedule is what a projection from validation documents gives for each number of texts.
make_once $out/batches.json \
  specbench profile --method sps --gamma 2,4,8 --batch 1,2,4,8,16,64 --documents 8 --repeats 1 --runtime static \
  --out $out/batches.json
run_into $out/alone --suite pocket --split validation --method sps --set sps.gamma=8 --limit 20 --runtime static
specbench simulate $out/alone --forward-times $out/batches.json --batch 1,2,4,8,16 --gamma 1,2,3,4,5

# shellcheck disable=SC2086
specbench load "${fixed[@]}" --method goodput --method target-acceptance --method k-by-batch \
  ${SCHEDULE:+--set "k-by-batch.schedule=$SCHEDULE"} --rate 2,4,8,12,16 --to-saturation \
  $common --requests 120 --out $out/lengths-by-rate --plot $out/lengths-by-rate.svg

# How far projections are from a server that has as many texts. Steps are compared in which none joins; with as many
# requests as rows, those are all until the first text ends.
for rows in 1 4 16 64; do
  specbench load "${fixed[@]}" --suite pocket --runtime static --rows $rows --rate inf \
    --requests $((rows < 8 ? 8 : rows)) --repeats $((rows < 8 ? 4 : 12)) --out $out/full-$rows
  specbench simulate $out/alone --forward-times $out/batches.json --batch $rows --gamma 2,4 --load $out/full-$rows
done
