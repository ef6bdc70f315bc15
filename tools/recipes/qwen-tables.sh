#!/usr/bin/env bash
# Scores, acceptance and counts of the papers' methods on real documents with the pair qwen2.5-coder, for its tables. The
# documents are decoded in batches of 8 in bfloat16, greedily and untimed, in stages of which each is of use by itself:
# the tasks with SMALL documents, CSD with a memory of CALIBRATE documents of training splits, then LARGE documents. It
# takes up to 12 GB of memory, and days on one core. TIMED=20 takes times instead, of 20 documents one by one, on all
# cores of a machine that should be idle.
#
#   DATA=folder OUT=runs/qwen2.5-coder SMALL=48 LARGE=164 CALIBRATE=1000 tools/recipes/qwen-tables.sh
#
# DATA has the documents as DATA_SPLIT.jsonl (docs/pages/add/suite.md). The same command goes on after a stop.
# ONLY="humaneval gsm8k" takes some of the tasks. One process runs at a time; OMP_NUM_THREADS=1 leaves other cores free.
set -eu
. "$(dirname "$0")/common.sh"
out=${OUT:-runs/qwen2.5-coder}
data=${DATA:?the folder of the documents: DATA=folder}
mkdir -p "$out"
exec 9> "$out/recipe.lock"
flock --nonblock 9 || { echo "another process is at work in $out" >&2; exit 1; }

# GSM8K after four examples, as the report of these models has it; all documents share them, so that they are read once.
cat > "$out/gsm8k.yaml" <<'YAML'
description: GSM8K after four examples that all documents share
tasks:
  - {task: gsm8k, fewshot: 4, same_shots: true}
YAML
cat > "$out/calibration.yaml" <<'YAML'
description: Training documents of GSM8K and of the functions that stand in for HumanEval's
tasks:
  - {task: gsm8k, fewshot: 4, same_shots: true}
  - {task: humaneval, fewshot: 0}
YAML

# Prompts of MBPP and MATH-500 are twice as long: half as many together take the same memory.
documents() {
  case $1 in
    gsm8k) echo "--suite $out/gsm8k.yaml" ;;
    humaneval) echo "--task humaneval --max-new-tokens 512 --allow-code-execution" ;;
    mbpp) echo "--task mbpp --allow-code-execution" ;;
    minerva_math500) echo "--task minerva_math500" ;;
  esac
}
together() {
  case $1 in
    gsm8k | humaneval) echo "--batch 8 --untimed" ;;
    *) echo "--batch 4 --untimed" ;;
  esac
}

# stage NAME TASK LIMIT ARGUMENTS...: a run of a task
stage() {
  local name=$1 task=$2 limit=$3
  shift 3
  echo "$(date +%H:%M) $name"
  # shellcheck disable=SC2046 # several words
  run_into "$out/$name" --pair qwen2.5-coder --dtype bfloat16 --data-dir "$data" $(documents "$task") --limit "$limit" \
    $([[ $name == *-times ]] || together "$task") "$@"
}

methods="--method sps --method pld --method lossy --method fly --method reflective"
calibrated="--baseline none --method csd --method csd-ocm --method csd-scg"
calibrated+=" --set csd.memory=$out/memory --set csd-ocm.memory=$out/memory"
every=${ONLY:-humaneval gsm8k minerva_math500 mbpp}

small() {
  for task in "$@"; do
    if [[ " $every " == *" $task "* ]]; then stage "$task-small" "$task" "${SMALL:-48}" $methods; fi
  done
}
if [ -n "${TIMED:-}" ]; then
  for task in $every; do
    stage "$task-times" "$task" "$TIMED" $methods
    if [ -e "$out/memory" ]; then stage "$task-csd-times" "$task" "$TIMED" --method sps ${calibrated#--baseline none}; fi
  done
  exit
fi
small humaneval gsm8k
make_once "$out/memory" specbench calibrate --pair qwen2.5-coder --dtype bfloat16 --data-dir "$data" \
  --suite "$out/calibration.yaml" --documents "${CALIBRATE:-1000}" --batch 16 --out "$out/memory"
for task in $every; do stage "$task-csd-small" "$task" "${SMALL:-48}" $calibrated; done
small minerva_math500 mbpp
for task in $every; do
  stage "$task-large" "$task" "${LARGE:-164}" $methods
  stage "$task-csd-large" "$task" "${LARGE:-164}" $calibrated
done
echo "next: specbench tables $out/*-large --out results/tables/qwen2.5-coder"
