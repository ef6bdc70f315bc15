"""Two methods on the same documents: python examples/compare_methods.py [DOCUMENTS]"""

import sys

import specbench

METHODS = ["sps", "csd"]
SUITE = "math"

documents = int(sys.argv[1]) if len(sys.argv) > 1 else 10
run = specbench.run(METHODS, SUITE, limit=documents)
table = run.summary.set_index(["task", "method"])
print(
    table[["documents", "accuracy", "tau", "speedup_decode", "speedup_decode_low", "speedup_decode_high"]].to_string()
)
print(f"recorded in {run.folder}; `specbench report {run.folder}` writes a page")
