#!/usr/bin/env bash
# The bundled pairs, from nothing: tokenizer, target and weak draft, the ladder of drafts, a draft of another tokenizer,
# then the models that decode together. On one core two hours, two hours, a quarter of an hour and 20 minutes. Every step
# resumes; checkpoints are in pocket-work/.
set -eu
. "$(dirname "$0")/common.sh"
export PYTHONPATH=tools
python -m pocket.build
python -m pocket.ladder
python -m pocket.narrow
python -m pocket.members
