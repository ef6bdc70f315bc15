#!/usr/bin/env bash
# What methods keep and gain as the draft of one target gets stronger: a run for each pair of the ladder, then the
# figures, in runs/strength/. LIMIT=N takes N documents of each task, by default 150, of which the first TIMED=20 are
# decoded and timed alone, the others in batches: two hours on one core. Runs that were stopped go on.
set -eu
. "$(dirname "$0")/common.sh"
out=runs/strength
limit=${LIMIT:-150}
timed=${TIMED:-20}

runs=()
for pair in pocket-weak pocket-early pocket-middle pocket-late pocket pocket-complement; do
  run_into $out/$pair --pair $pair --suite strength --baseline vanilla --limit "$limit" --allow-code-execution \
    --runtime static --batch 16 --time-documents "$timed"
  runs+=("$out/$pair")
done
specbench analyze strength "${runs[@]}"
specbench analyze strength "${runs[@]}" --format csv > $out/strength.csv
specbench plot strength "${runs[@]}" --out $out/strength.svg
