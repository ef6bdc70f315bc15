#!/usr/bin/env bash
# What forwards of 1 to 16 tokens take, next to the time of reading the weights, of models and types that are named: one
# table of all of them. A model is a pair by name, a folder or a GGUF file; int8 and int4 are weights, computed in bfloat16:
#   tools/recipes/widths.sh widths.csv smollm2:float32 smollm2:int4 path/to/model:bfloat16
# Run it on an idle machine, with as many threads as cores. The same command goes on after a stop.
set -eu
out=$1
shift
mkdir -p "$out.parts"

for named in "$@"; do
  model=${named%:*}
  part="$out.parts/$(basename "$named").csv"
  if [ -e "$part" ]; then continue; fi  # of an earlier call
  where=(--target "$model")
  if [ -e "suites/pairs/$model.yaml" ]; then where=(--pair "$model"); fi
  case ${named##*:} in
    int*) how=(--dtype bfloat16 --weights "${named##*:}") ;;
    *) how=(--dtype "${named##*:}") ;;
  esac
  specbench profile --widths "${where[@]}" "${how[@]}" --runtime static --out "$part"
done
head -n 1 "$part" > "$out"
for named in "$@"; do
  tail -n +2 "$out.parts/$(basename "$named").csv" >> "$out"
done
