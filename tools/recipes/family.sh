#!/usr/bin/env bash
# The family table: heads that read the target's states, each trained on equal data by equally many equal updates, three
# seeds each, then all of them on the same test documents, in runs/family/run. What each ingredient is worth follows from
# neighbours: `hass-steps` and `hass-likeliest` have one of HASS's two each, `fspad` and `dovetail` another fusion,
# `chimera` reads the text and not its own states, `eagle3` other features and no regression. Parameters, agreement on
# held-out answers, acceptance by depth, time of drafting, τ and speed go to runs/family/family.csv and .md. 33 trainings
# of some minutes each on one core, then a run; on a GPU a fraction of that. What is done is not repeated. SEEDS, METHODS,
# DOCUMENTS, EPOCHS and LIMIT take a part; TRAIN_ONLY=1 leaves the run, which is timed, for an idle machine.
set -eu
. "$(dirname "$0")/common.sh"
out=runs/family
mkdir -p $out

# own NAME: what the recipe of NAME has of its own, next to the equal budget; its first word is the method that is trained.
own() {
  case $1 in
    hass-steps) echo "hass distillation=0 autocast=false" ;;
    hass-likeliest) echo "hass steps=1 autocast=false" ;;
    eagle | hass | fspad | dovetail) echo "$1 autocast=false" ;;
    eagle3) echo "eagle3 autocast=false draft_vocabulary=2048" ;;
    medusa) echo "medusa heads=3 layers=6 output=target loss=distillation" ;;
    hydra) echo "hydra heads=3 output=target last_rate=0" ;;
    chimera) echo "chimera autocast=false" ;;
    kangaroo) echo "kangaroo" ;;
    *)
      echo "no recipe of $1; METHODS takes eagle hass hass-steps hass-likeliest fspad dovetail chimera eagle3 medusa hydra kangaroo" >&2
      exit 1
      ;;
  esac
}

# trained NAME SEED: a head. The target answers the documents of a seed once.
trained() {
  local head=$out/$1-$2.safetensors answers=$out/answers-$2 method settings setting recipe=()
  read -r method settings <<< "$(own "$1")"
  for setting in $settings answers=1 temperature=0 length=2048 epochs="${EPOCHS:-6}" batch=32 learning_rate=0.002 \
    warmup=0.02 weight_decay=0; do recipe+=(--recipe "$setting"); done
  if [ -e "$answers" ] && [ ! -e "${head%.safetensors}.answers" ]; then cp -r "$answers" "${head%.safetensors}.answers"; fi
  make_once "$head" \
    specbench train --method "$method" --suite pocket --documents "${DOCUMENTS:-600}" --seed "$2" "${recipe[@]}" \
    --out "$head"
  if [ ! -e "$answers" ]; then cp -r "${head%.safetensors}.answers" "$answers"; fi
  sed "s|value: auto|value: $head|" "$(find suites/methods -name "$method.yaml")" > "$out/$1-$2.yaml"
}

names=${METHODS:-eagle hass hass-steps hass-likeliest fspad dovetail chimera eagle3 medusa hydra kangaroo}
methods=()
for seed in ${SEEDS:-0 1 2}; do
  for name in $names; do
    trained "$name" "$seed"
    methods+=(--method "$out/$name-$seed.yaml")
  done
done
if [ -n "${TRAIN_ONLY:-}" ]; then exit; fi
run_into "$out/run" --suite pocket "${methods[@]}" --limit "${LIMIT:-25}" --allow-code-execution
python tools/recipes/family_table.py $out $names
