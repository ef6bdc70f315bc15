"""Function calls on SmolLM2 with and without their schemas: scores, valid answers, and what drafts are worth.

    python tools/recipes/function_calls.py DATA runs/calls results/reference/calls-smollm2.json

DATA holds bfcl_simple_test.jsonl. Runs that are there already are read, unfinished ones go on. No times are taken.
"""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pandas as pd

COMMAND = "specbench run --pair smollm2 --suite tools --limit 15 --max-new-tokens 64 --untimed --data-dir {data}"
RUNS = {
    "schema": " --schema-field schema --method pld --method sam --method grammar --method grammar-alone",
    "free": " --method pld",
}


def main(data: str, folder: str, out: str) -> None:
    facts = {"what": "bfcl_simple on SmolLM2, greedy, under the schema of each function and free"}
    for name, options in RUNS.items():
        run, command = Path(folder) / name, COMMAND + options
        if not (run / "summary.parquet").exists():
            begun = (run / "manifest.json").exists()
            words = f"specbench run --resume {run}" if begun else f"{command.format(data=data)} --out {run}"
            program, *rest = words.split()
            subprocess.run([str(Path(sys.executable).with_name(program)), *rest], check=True)
        there = json.loads((run / "manifest.json").read_text())
        machine = {
            key: there["environment"][key] for key in ("cpu", "cores", "threads", "system", "python", "versions")
        }
        facts["machine"] = machine | {"llguidance": version("llguidance")}
        facts[name] = {
            "command": command.format(data="DATA"),
            "commit": there["environment"]["git"],
            "started": there["started"],
            "runtime": there["runtime"]["name"],
            "methods": of_run(run),
        }
    Path(out).write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps({name: facts[name]["methods"] for name in RUNS}, indent=1))


def of_run(run: Path) -> dict[str, dict[str, object]]:
    """The figures of each method: shares of right, valid and cut answers, acceptance and tokens a round."""
    samples, rounds, scores = (pd.read_parquet(run / f"{name}.parquet") for name in ("samples", "rounds", "scores"))
    samples, rounds = samples[~samples.warmup], rounds[~rounds.warmup & (rounds["round"] > 0)]
    means = scores[scores.doc_id.notna()].pivot_table(index="method", columns="metric", values="value")
    vanilla = samples[samples.method == "vanilla"].set_index("doc_id").tokens.map(list)
    found = {}
    for method, texts in samples.groupby("method"):
        counts = rounds[rounds.method == method][["drafted", "accepted", "committed"]].sum()
        equal = sum(list(row.tokens) == vanilla[row.doc_id] for row in texts.itertuples())
        found[method] = {
            "texts": len(texts),
            "equal": equal,
            "right": round(means.right[method], 4),
            "valid": round(means.valid[method], 4),
            "cut": round(float((texts.finish == "length").mean()), 4),
            "accepted": round(counts.accepted / counts.drafted, 4) if counts.drafted else None,
            "tau": round(counts.committed / (rounds.method == method).sum(), 4),
        }
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
