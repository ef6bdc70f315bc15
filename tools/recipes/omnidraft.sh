#!/usr/bin/env bash
# A draft of another tokenizer (pocket-narrow): the tokens that both have (`sps`) next to merged drafts of as many draws:
# with a cache that fills on line, with all tokens from the start, with a draft that learns, and with adaptive lengths.
# LIMIT=N documents of each task; TEMPERATURE=0; OUT=FOLDER of the run, which goes on if it was stopped.
set -eu
. "$(dirname "$0")/common.sh"
out=${OUT:-runs/omnidraft}
mkdir -p "$out.methods"

# variant NAME SETTING VALUE [SETTING VALUE]: a file of the method with other settings.
variant() {
  local file=$out.methods/$1.yaml
  shift
  cp extras/specbench_extras/omnidraft/omnidraft.yaml "$file"
  while [ $# -gt 0 ]; do
    sed -i "/^  $1:/{n;s/value: .*/value: $2/}" "$file"
    shift 2
  done
}
variant omnidraft-cache interval 0
variant omnidraft-all interval 0 ngrams all
variant omnidraft-adaptive interval 0 ngrams all length adaptive gamma 12
run_into "$out" --pair pocket-narrow --suite pocket --limit "${LIMIT:-15}" --temperature "${TEMPERATURE:-0}" \
  --method sps --set sps.gamma=5 --method "$out.methods/omnidraft-cache.yaml" --method "$out.methods/omnidraft-all.yaml" \
  --method omnidraft --method "$out.methods/omnidraft-adaptive.yaml" --allow-code-execution
specbench compare "$out"
