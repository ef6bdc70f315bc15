#!/usr/bin/env bash
# The pair `pocket-hybrid`, from nothing: a target of gated delta nets and attention, a draft with a short convolution,
# and a module for more tokens in the target's checkpoint. Some minutes on one idle core. Every step resumes; checkpoints
# are in pocket-work/.
set -eu
. "$(dirname "$0")/common.sh"
export PYTHONPATH=tools
module=$heads/mtp-pocket-hybrid.safetensors
python -m pocket.hybrid
make_once $module \
  specbench train --method mtp --pair pocket-hybrid --suite pocket --documents 40 --recipe steps=3 \
  --recipe step_decay=0.8 --recipe epochs=10 --recipe batch=8 --recipe learning_rate=0.002 --recipe warmup=0.02 \
  --recipe autocast=false --recipe clip=0.5 --out $module
python -m pocket.hybrid --modules $module
