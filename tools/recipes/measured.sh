#!/usr/bin/env bash
# Figures of the bundled pair that the papers' tables need and no run of a table's methods gives: forward times
# (SpecDec++, Table 2), heads (its Table 3), complementarity, branches, batches, load and serving (CoSpec, Tables 2, 3, 9
# to 11).
# `make reproduce-tables` runs it first. LIMIT=N takes N documents of each task; BATCH=N decodes N of them together, all
# but the first TIMED. What is there is not measured again.
set -eu
. "$(dirname "$0")/common.sh"
measured=runs/tables/measured
few="${LIMIT:+--limit $LIMIT} ${BATCH:+--batch $BATCH --time-documents ${TIMED:-25}}"

make_once $measured/profile.csv \
  specbench profile --suite specdecpp --temperature 0 --out $measured/profile.json

if [ ! -e $measured/heads.csv ]; then
  specbench train --method specdecpp --suite pocket-all --documents 1000 \
    --grid depth=0,1,2,3,4 --grid weight=1,3,6,12 \
    --recipe learning_rate=0.001 --recipe epochs=10 --recipe patience=2 --out runs/tables/heads
  run_into runs/long-drafts --suite specdecpp --method specdecpp \
    --set specdecpp.shortest=20 --set specdecpp.longest=20 --limit 30
  specbench simulate runs/long-drafts --method specdecpp --heads runs/tables/heads --out $measured/heads.csv
fi

# shellcheck disable=SC2086 # $few is several words or none
{
  run_into runs/cospec/arbiters --suite cospec-arbiters $few
  run_into runs/cospec/draft-alone --method member --baseline none --suite pocket $few
}
make_once $measured/cospec-table2.csv \
  specbench analyze complementarity runs/cospec/arbiters --draft runs/cospec/draft-alone \
  --out $measured/cospec-table2.csv
make_once $measured/cospec-table3.csv \
  specbench analyze counterfactual runs/cospec/arbiters --states 400 --out $measured/cospec-table3.csv
make_once $measured/cospec-table9.csv \
  specbench throughput --method cospec --batch 2,4,8,16,32,64 --limit 4 --out $measured/cospec-table9.csv
make_once $measured/cospec-table10.csv \
  specbench load --method cospec --rate 2,4,8,12,16 --to-saturation --suite pocket --runtime static --rows 16 \
  --requests 48 --repeats 4 --out runs/load/cospec --cells $measured/cospec-table10.csv
# shellcheck disable=SC2086
run_into runs/cospec/serving --suite pocket --method sps --set sps.gamma=25 --method eagle3 --method cospec $few
make_once $measured/cospec-table11.csv \
  specbench serving runs/cospec/serving --out $measured/cospec-table11.csv
