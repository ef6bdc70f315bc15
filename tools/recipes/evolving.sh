#!/usr/bin/env bash
# One draft for a target that goes on to be trained, as FlexSpec's stays on the device while the cloud's model changes:
# `small`, which learned from the base model, next to that base and its further trainings for mathematics and for code.
# LIMIT=N documents of each task; TEMPERATURE=0; OUT=FOLDER of the runs, which go on if they were stopped.
set -eu
. "$(dirname "$0")/common.sh"
out=${OUT:-runs/evolving}
for target in general math code; do
  run_into "$out/$target" --target "bundled:$target" --draft bundled:small --suite pocket --limit "${LIMIT:-25}" \
    --temperature "${TEMPERATURE:-0}" --method sps --set sps.gamma=5 --untimed --allow-code-execution
done
specbench compare "$out"/*
