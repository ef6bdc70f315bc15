#!/usr/bin/env bash
# Which drafts are worth having without training anything, and where: chains, lengths, trees, heads and look-ups of the
# bundled pair next to one another on words, algebra, code and news, in runs/drafts/. LIMIT=N takes N documents of each
# task, by default 25. What each is worth is said by task, against the target alone and against a chain of the same draft
# (`sps`). A run that was stopped goes on.
# MORE has further options of the run, such as MORE="--max-new-tokens 8" for a trial.
set -eu
. "$(dirname "$0")/common.sh"
out=runs/drafts

methods=()
for name in \
  sps bandit heuristic confidence specserve goodput speckv speckv-time cs-drafting \
  eagle2 opt-tree sequoia rsd mdsd tlt \
  eagle3 graft graft-sps tlt-eagle3 eagle3-typical \
  rest rest-aded rest-rasd pld logitspec recycling suffix suffixdecoding sam anpd; do
  methods+=(--method "$name")
done
# shellcheck disable=SC2086 # MORE is several words or none
run_into $out --suite drafts "${methods[@]}" --limit "${LIMIT:-25}" --allow-code-execution ${MORE:-}
specbench compare $out
specbench compare $out --against sps
specbench compare $out --format csv > $out/drafts.csv
