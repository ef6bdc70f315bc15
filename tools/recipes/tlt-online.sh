#!/usr/bin/env bash
# A head of EAGLE-3 that was trained for `general`, on a target that was trained further, as in evolving.sh: TLT with the
# head as it is (`fixed`: its first update would come after the last document), `tlt-online`, and the same with larger
# steps (`quick`), greedy, on documents of one task in their order, all with trees of one size, so that τ tells of the
# head alone. Then τ in both halves of the documents, over that of `fixed`.
# TARGET=math (`general` tells what is learned without a change), TASK=pocket_gsm8k, LIMIT=N documents; RATE of the
# larger steps, to be chosen with SPLIT=calibration; OUT=FOLDER of the runs, which go on if they were stopped.
set -eu
. "$(dirname "$0")/common.sh"
head=$heads/eagle3-general.safetensors
target=${TARGET:-math}
split=${SPLIT:-test}
out=${OUT:-runs/tlt-online}/$target-$split
mkdir -p "$out"

make_once "$head" \
  specbench train --method eagle3 --target bundled:general --draft bundled:small --suite pocket \
  --documents "${DOCUMENTS:-100}" --recipe draft_vocabulary=2048 --recipe epochs=4 --recipe batch=32 \
  --recipe learning_rate=0.002 --recipe warmup=0.02 --out "$head"

# variant NAME INTERVAL RATE: a method `tlt-NAME` with the head, next to the run.
variant() {
  sed -e "s|value: auto|value: $head|" -e "/strategies:/{n;s/value:.*/value: [[4, 4, 16]]/}" \
    -e "/interval:/{n;s/4/$2/}" -e "/learning_rate:/{n;s/0.0001/$3/}" \
    extras/specbench_extras/tlt/tlt-online.yaml > "$out/tlt-$1.yaml"
}
variant fixed 1000000 0.0001
variant online 4 0.0001
variant quick 4 "${RATE:-0.001}"
run_into "$out/run" --target "bundled:$target" --draft bundled:small --task "${TASK:-pocket_gsm8k}" --split "$split" \
  --limit "${LIMIT:-60}" --method "$out/tlt-fixed.yaml" --method "$out/tlt-online.yaml" --method "$out/tlt-quick.yaml" \
  --baseline none --untimed
python - "$out/run" "$target" <<'FIGURES' | tee "$out/tlt-online.csv"
import sys
from pathlib import Path

from specbench.analysis.metrics import TIMED, per_document
from specbench.base.stats import pooled_rate
from specbench.results.stored import StoredRun
from specbench_extras.drafts.study import gain

run = StoredRun(Path(sys.argv[1]))
counts = per_document(run.samples(list(TIMED)), run.rounds())
order = counts.index.get_level_values("doc_id")
documents = sorted(set(order))
middle = (len(documents) + 1) // 2


def figures(interval):
    return ",".join(f"{value:.4f}" for value in (interval.value, interval.low, interval.high))


print("target,part,documents,method,tau,tau_low,tau_high,gain,gain_low,gain_high")
for part, some in {"first": documents[:middle], "second": documents[middle:], "all": documents}.items():
    of_part = counts[order.isin(some)]
    names = ("tlt-fixed", "tlt-online", "tlt-quick")
    of = {method: of_part.xs(method, level="method", drop_level=False) for method in names}
    for method, mine in of.items():
        over = figures(gain(of["tlt-fixed"], mine)) if method != "tlt-fixed" else ",,"
        tau = figures(pooled_rate(mine.C.to_numpy(), mine.R.to_numpy()))
        print(f"{sys.argv[2]},{part},{len(some)},{method},{tau},{over}")
FIGURES
