#!/usr/bin/env bash
# Drafts for a chat model that nobody has made any for, and for which no data set is at hand: an EAGLE-3 head, and its own
# first layers as a draft with adapters. The target writes the prompts itself, some of them articles to summarize, and
# answers each once; both learn from these answers. PAIR is a name, a YAML file or target=FOLDER, by default smollm2.
# With DATA, a folder with cnn_dm_test.jsonl and mt_bench.jsonl, both are then decoded with next to what needs no
# training. A command that was stopped goes on, and what is there is not made again.
set -eu
. "$(dirname "$0")/common.sh"
pair=${PAIR:-smollm2} out=${OUT:-runs/own-drafts} layers=${LAYERS:-10} answer=${ANSWER:-128}
mkdir -p "$out"

article='Summarize the following article:\n\n'
make_once "$out/articles.jsonl" python tools/recipes/own_prompts.py --pair "$pair" --count "${ARTICLES:-64}" \
  --begin "$article" --end '\n\nSummary:' --most 224 --answer "$answer" --out "$out/articles.jsonl"
make_once "$out/turns.jsonl" python tools/recipes/own_prompts.py --pair "$pair" --count "${TURNS:-1024}" \
  --most 64 --answer "$answer" --out "$out/turns.jsonl"
[ -e "$out/prompts.jsonl" ] || cat "$out/articles.jsonl" "$out/turns.jsonl" > "$out/prompts.jsonl"

make_once "$out/eagle3.safetensors" \
  specbench train --method eagle3 --pair "$pair" --prompts "$out/prompts.jsonl" \
  --recipe draft_vocabulary=8192 --recipe steps=3 --recipe epochs="${EPOCHS:-6}" --recipe batch=4 \
  --recipe learning_rate=0.001 --recipe warmup=0.05 --out "$out/eagle3.safetensors"

python tools/recipes/first_layers.py "$pair" "$layers" > "$out/first-$layers.yaml"
mkdir -p "$out/early-$layers.answers"
[ -e "$out/early-$layers.answers/0" ] || cp -r "$out/eagle3.answers" "$out/early-$layers.answers/0"  # answered once
make_once "$out/early-$layers" \
  specbench train --method draft --pair "$out/first-$layers.yaml" --prompts "$out/prompts.jsonl" \
  --recipe data=target --recipe temperatures=0 --recipe loss=fkl --recipe lora_rank=32 --recipe batch=4 \
  --recipe epochs="${EPOCHS:-6}" --recipe learning_rate=0.002 --recipe warmup=0.05 --out "$out/early-$layers"

if [ -z "${DATA:-}" ]; then exit; fi
# shellcheck disable=SC2206 # several words
more=(${MORE:---untimed --baseline none})
for name in eagle3 early; do
  case $name in
    eagle3) methods=(--pair "$pair" --method eagle3 --method eagle3-chain --method pld
      --set "eagle3.head=$out/eagle3.safetensors" --set "eagle3-chain.head=$out/eagle3.safetensors") ;;
    early) methods=(--pair "$out/early-$layers.yaml" --method sps) ;;
  esac
  run_into "$out/cnn-$name" "${methods[@]}" --task cnn_dailymail_abisee --data-dir "$DATA" --apply-chat-template \
    --limit "${LIMIT:-12}" --max-new-tokens "$answer" "${more[@]}"
  run_into "$out/mt-$name" "${methods[@]}" --prompts "$DATA/mt_bench.jsonl" --limit "${EACH:-2}" --max-new-tokens "$answer" \
    "${more[@]}"  # of each of its eight categories, two turns each
done
python tools/recipes/own_drafts_table.py "$out" > "$out/own-drafts.csv"
