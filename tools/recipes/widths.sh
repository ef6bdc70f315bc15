#!/usr/bin/env bash
# What forwards of 1 to 16 tokens take, next to the time of reading the weights, of models and types that are named: one
# table of all of them. A model is a pair by name, a folder or a GGUF file; int8 and int4 are weights, computed in bfloat16:
#   tools/recipes/widths.sh widths.csv smollm2:float32 smollm2:int4 path/to/model:bfloat16
# Run it on an idle machine, with as many threads as cores.
set -eu
out=$1
shift
part=$(mktemp -d)
trap 'rm -r "$part"' EXIT

first=1
for named in "$@"; do
  model=${named%:*}
  where=(--target "$model")
  if [ -e "suites/pairs/$model.yaml" ]; then where=(--pair "$model"); fi
  case ${named##*:} in
    int*) how=(--dtype bfloat16 --weights "${named##*:}") ;;
    *) how=(--dtype "${named##*:}") ;;
  esac
  specbench profile --widths "${where[@]}" "${how[@]}" --runtime static --out "$part/one.csv"
  tail -n +$first "$part/one.csv" >> "$part/all.csv"
  first=2
done
mv "$part/all.csv" "$out"
