#!/usr/bin/env bash
# Drafts that learn while they serve, with the weak draft of the bundled pair: acceptance from text to text of a stream
# that goes from word problems to code in its middle, greedy. `osd` as its paper has it, and with steps ten times as
# large after every text. A run that was stopped goes on. EACH=N prompts of each kind; OUT=FOLDER of the run.
set -eu
. "$(dirname "$0")/common.sh"
out=${OUT:-runs/online}
mkdir -p "$out"
made=$out/stream.jsonl
[ -e "$made" ] || python - "${EACH:-60}" > "$made" <<'PROMPTS'
import json
import sys

from specbench_extras.bench.prompts import bundled_prompts

for family in ("gsm8k", "humaneval"):
    for prompt in bundled_prompts(family, int(sys.argv[1])):
        print(json.dumps({"prompt": prompt}))
PROMPTS
sed -e '/interval:/{n;s/8/1/}' -e '/learning_rate:/{n;s/0.0001/0.001/}' extras/specbench_extras/osd/osd.yaml > "$out/osd-quick.yaml"
run_into "$out/stream" --prompts "$made" --pair pocket-weak --method sps --set sps.gamma=5 --method osd \
  --method "$out/osd-quick.yaml" --baseline sps --max-new-tokens 96 --untimed
specbench plot drift "$out/stream" --out "$out/drift.svg"
python - "$out/stream" > "$out/osd-drift.csv" <<'FIGURES'
import sys
from pathlib import Path

from specbench.analysis.metrics import TIMED, per_document
from specbench.results.stored import StoredRun

run = StoredRun(Path(sys.argv[1]))
counts = per_document(run.samples(list(TIMED)), run.rounds()).reset_index()
counts["kind"] = ["word problems" if i < counts.doc_id.nunique() / 2 else "code" for i in counts.doc_id]
counts = counts.assign(text=counts.doc_id + 1, accepted=counts.A.astype(int), tested=(counts.A + counts.J).astype(int))
print(counts[["text", "kind", "method", "accepted", "tested"]].sort_values(["text", "method"]).to_csv(index=False), end="")
FIGURES
