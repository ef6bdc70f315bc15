#!/usr/bin/env bash
# The arbitrator of CoSpec that ships with a bundled pair (PAIR, by default pocket): warm-up and reinforcement on
# calibration documents (DATA, by default of one family), less than an hour on one core. That of pocket-complement:
# DATA="--data pocket_math500:calibration --data pocket_ifeval:calibration --documents 750".
# With `ablations`: arbitrators whose training lacks a part (CoSpec, Table 6), and `whole`, which lacks none; a fifth of
# the updates, half an hour. The suite cospec-rewards runs them.
# With `causal`: one that learns to read causally, like the one that ships otherwise; the suite cospec-mask-trained runs
# that of pocket-complement. A command that was stopped goes on.
set -eu
. "$(dirname "$0")/common.sh"
pair=${PAIR:-pocket}
data="--pair $pair ${DATA:---data pocket_gsm8k:calibration --documents 1500}"
warm_up=$heads/cospec-sft-$pair.safetensors

# sft FILE ARGUMENTS...: the warm-up. rl FILE WARM-UP ARGUMENTS...: the reinforcement.
# shellcheck disable=SC2086 # $data is several words
sft() {
  local out=$1
  shift
  make_once "$out" specbench train --method cospec --stage sft "$@" $data \
    --recipe learning_rate=0.002 --recipe epochs=4 --recipe batch=32 --out "$out"
}
# shellcheck disable=SC2086
rl() {
  local out=$1 from=$2
  shift 2
  make_once "$out" specbench train --method cospec --stage rl --warm-up "$from" $data "$@" \
    --recipe prompts=24 --recipe group=8 --recipe epochs=2 --recipe learning_rate=0.0005 --out "$out"
}

if [ "${1:-}" = causal ]; then
  sft $heads/cospec-causal-sft-$pair.safetensors --set cospec.mask=causal
  rl $heads/cospec-causal-$pair.safetensors $heads/cospec-causal-sft-$pair.safetensors --set cospec.mask=causal \
    --recipe updates=40
  exit
fi

sft $warm_up
if [ "${1:-}" != ablations ]; then
  rl $heads/cospec-$pair.safetensors $warm_up --recipe updates=40
  exit
fi

# lacking NAME WARM-UP ARGUMENTS...: a training that breaks down stops by itself and leaves the others; without the risk
# penalty a policy learns to keep everything.
lacking() {
  local name=$1 from=$2
  shift 2
  rl "$heads/ablations/$name.safetensors" "$from" "$@" --recipe updates=8 || echo "$name: no arbitrator"
}
make_once $heads/ablations/sft-only.safetensors cp $warm_up $heads/ablations/sft-only.safetensors
sft $heads/ablations/draft-judged.safetensors --judge bundled:draft
lacking whole $warm_up
lacking no-judge none
lacking draft-judge $heads/ablations/draft-judged.safetensors
lacking terminal-only $warm_up --recipe length=0 --recipe surprisal=0 --recipe rejection=0
lacking no-length $warm_up --recipe length=0
lacking no-risk $warm_up --recipe surprisal=0
lacking no-rejection $warm_up --recipe rejection=0
lacking no-rebalancing $warm_up --recipe rebalance=false
