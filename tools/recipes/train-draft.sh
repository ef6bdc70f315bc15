#!/usr/bin/env bash
# The weak draft of the bundled pair, trained on the target's own answers to 1,440 calibration documents (160 others
# choose the weights that are kept), then decoded with next to the draft as it ships, on test documents at temperature 1:
# at most 40 minutes on two cores. In pocket-work/; commands that were stopped go on.
set -eu
. "$(dirname "$0")/common.sh"
draft=${OUT:-pocket-work/trained-weak}
limit=${LIMIT:-25}

make_once $draft \
  specbench train --method draft --pair pocket-weak --suite pocket --documents 400 \
  --recipe data=target --recipe temperatures=1,0 --recipe loss=fkl --recipe learning_rate=0.001 \
  --recipe warmup=0.05 --recipe epochs=5 --recipe autocast=false --out $draft

suite="--suite pocket --method sps --temperature 1 --limit $limit --allow-code-execution"
run_into $draft.ships --pair pocket-weak $suite
run_into $draft.trained --target bundled:target --draft $draft $suite
specbench analyze drafts $draft.ships $draft.trained
