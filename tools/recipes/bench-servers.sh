#!/usr/bin/env bash
# Servers of other engines next to our own: one run in which each document is decoded by all of them in turn. Its speedups
# are ratios to vanilla decoding here. Next to a server with a draft model of 5 tokens stands `sps`, next to one with vLLM's
# n-grams `pld-vllm`. `make bench` ends with it.
# SERVERS="vllm=http://127.0.0.1:8000 ngram=http://127.0.0.1:8001" names them; without any, nothing is run. PAIR=pocket;
# DOCUMENTS=15 of each task; RUNTIME=static; OUT=FOLDER of the run.
set -eu
. "$(dirname "$0")/common.sh"
if [ -z "${SERVERS:-}" ]; then
  echo "no server is timed next to our own: SERVERS='vllm=http://127.0.0.1:8000' make bench"
  exit 0
fi
servers=()
for server in $SERVERS; do servers+=(--server "$server"); done
out=${OUT:-runs/bench-servers-$(date +%Y%m%d-%H%M%S)}
specbench run "${servers[@]}" --pair "${PAIR:-pocket}" --method sps --set sps.gamma=5 --method pld-vllm \
  --runtime "${RUNTIME:-static}" --suite math --limit "${DOCUMENTS:-15}" --out "$out"
specbench analyze requests "$out"
