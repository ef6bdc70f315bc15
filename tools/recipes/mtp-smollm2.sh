#!/usr/bin/env bash
# A module for SmolLM2 and a head of EAGLE-3 that learn from the same answers, and τ of both by drafted tokens:
# results/reference/mtp-depth-smollm2.csv. DATA has gsm8k_train.jsonl and gsm8k_test.jsonl. About an hour on one core;
# a command that was stopped goes on, and what is there is not made again. DOCUMENTS and LIMIT are of training and test.
set -eu
. "$(dirname "$0")/common.sh"
data=${DATA:?DATA=FOLDER with gsm8k_train.jsonl and gsm8k_test.jsonl} out=${OUT:-runs/mtp-smollm2}
shared=(--pair smollm2 --data gsm8k:train --data-dir "$data" --documents ${DOCUMENTS:-64})
shared+=(--recipe steps=3 --recipe step_decay=0.8 --recipe epochs=6 --recipe batch=4 --recipe learning_rate=0.001)
shared+=(--recipe warmup=0.05 --recipe clip=0.5 --recipe answers=1 --recipe temperature=0)
tested=(--pair smollm2 --task gsm8k --data-dir "$data" --limit ${LIMIT:-24} --untimed)
mkdir -p "$out"

# sweep_into FOLDER ARGUMENTS...: as run_into, of a sweep.
sweep_into() {
  if [ -f "$1/manifest.json" ]; then run_into "$1"; else specbench sweep "${@:2}" --out "$1"; fi
}

make_once $out/mtp.safetensors specbench train --method mtp "${shared[@]}" --out $out/mtp.safetensors
[ -e $out/eagle3.answers ] || cp -r $out/mtp.answers $out/eagle3.answers
make_once $out/eagle3.safetensors specbench train --method eagle3 "${shared[@]}" --out $out/eagle3.safetensors
sweep_into $out/runs-mtp --method mtp --param steps=1,2,3 "${tested[@]}" --set mtp.head=$out/mtp.safetensors
sweep_into $out/runs-eagle3 --method eagle3-chain --param total_tokens=2,3,4 "${tested[@]}" \
  --set eagle3-chain.head=$out/eagle3.safetensors
python tools/recipes/mtp_depth.py $out/runs-mtp $out/runs-eagle3 > $out/mtp-depth-smollm2.csv
