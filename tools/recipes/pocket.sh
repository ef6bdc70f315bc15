#!/usr/bin/env bash
# The bundled pair, from nothing: documents, tokenizer, target and draft (some three hours on one core), then the models
# that decode together (35 minutes). Every step resumes; checkpoints are in pocket-work/.
set -eu
. "$(dirname "$0")/common.sh"
python -m specbench.training.pocket.build
python -m specbench.training.pocket.members
