"""What drafts are worth on a real pair by workload: prose, code, repetition, long prompts, JSON and agents.

    python tools/recipes/workloads.py smollm2 DATA runs/workloads results/reference/workloads-smollm2.csv

DATA holds mt_bench.jsonl, humaneval_test.jsonl, cnn_dm_test.jsonl, bfcl_simple_test.jsonl and
agent_trajectories.jsonl; `qwen2.5-coder` is the other pair. A last argument such as `prose,code` takes some of the runs
and keeps the rows of the others; runs that are there already are read, and unfinished ones go on. Times are taken, so
leave the machine idle; UNTIMED=1 takes none, in batches. `equal` counts texts that are vanilla's, all of them where
rows are equal bit for bit. A JSON file next to the CSV says how. Rows of agents are by the tokens before a round; their
intervals are over conversations.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis.context import context
from specbench.results.stored import StoredRun

ALL = "--method sps --method pld --method suffix --method sam --method recycling --method lookahead"
FEW = "--method sps --method pld --method suffix"
SCHEMAS = f"{FEW} --method sam --method grammar"
RUN = "specbench run --pair {pair} --runtime static"
RUNS = {
    "prose": f"{RUN} {ALL} --max-new-tokens 64 --prompts RUNS/prose.jsonl",
    "code": f"{RUN} {ALL} --max-new-tokens 64 --task humaneval --apply-chat-template --limit 8 --data-dir DATA "
    "--allow-code-execution",
    "repeat": f"{RUN} --no-share-prefix {ALL} --max-new-tokens 64 --prompts RUNS/repeat.jsonl",
    "everyday": f"{RUN} {ALL} --max-new-tokens 64 --suite everyday --limit 8",
    "schemas": f"{RUN} {SCHEMAS} --max-new-tokens 48 --prompts tools/recipes/schemas.jsonl",
    "calls": f"{RUN} {SCHEMAS} --max-new-tokens 64 --suite tools --limit 15 --schema-field schema --data-dir DATA",
    "agents": f"{RUN} {FEW} --max-new-tokens 32 --trajectories RUNS/agents.jsonl",
}
BATCHES = {"prose": 8, "code": 8, "repeat": 6, "everyday": 4}


# Conversations that the windows of both pairs hold.
AGENTS = ("6e44b9__sweagenttestrepo-1c2844-0", "function_calling_simple-3", "humanevalfix-python-0-4")
AGENTS += tuple(f"marshmallow-code__marshmallow-1867-{n}" for n in (7, 11))
PAIRS = {"smollm2": "smollm2", "qwen2.5-coder": "qwen2.5-coder --dtype bfloat16"}
COLUMNS = ["acceptance_rate", "alpha", "tau", "tau_low", "tau_high", "tokens_per_s"]
COLUMNS += [f"speedup_{what}{end}" for what in ("decode", "e2e") for end in ("", "_low", "_high")]
PLACES = ["alpha", "tau", "tau_low", "tau_high", "speed", "speedup", "speedup_low", "speedup_high", "target", "draft"]
PLACED = {"speed": "tokens_per_s", "target": "target_s", "draft": "draft_s"} | {
    f"speedup{end}": f"speedup_decode{end}" for end in ("", "_low", "_high")
}


def main(pair: str, data: str, folder: str, out: str, names: str = ",".join(RUNS)) -> None:
    runs = Path(folder)
    runs.mkdir(parents=True, exist_ok=True)
    write_prompts(Path(data), runs)
    before = pd.read_csv(out) if Path(out).exists() else pd.DataFrame({"run": []})
    about = Path(out).with_suffix(".json")
    facts: dict[str, Any] = {"what": "drafts by workload, greedy", "pair": pair, "runs": {}}
    facts["runs"] |= json.loads(about.read_text())["runs"] if about.exists() else {}
    rows: list[dict[str, Any]] = []
    for name in names.split(","):
        command = RUNS[name].format(pair=PAIRS[pair])
        if os.environ.get("UNTIMED"):
            command += " --untimed" + (f" --batch {BATCHES[name]}" if name in BATCHES else "")
        run = runs / name
        if not (run / "summary.parquet").exists():
            begun = (run / "manifest.json").exists()
            code = " --allow-code-execution" * ("--allow-code" in command)
            words = f"specbench run --resume {run}{code}" if begun else f"{command} --out {run}"
            program, *rest = words.replace("RUNS", folder).replace("DATA", data).split()
            subprocess.run([str(Path(sys.executable).with_name(program)), *rest], check=True)
        there = json.loads((run / "manifest.json").read_text())["environment"]
        facts["runs"][name] = {"command": command, "commit": there.get("git"), "load": there["load"]}
        facts["runs"][name] |= {k: there[k] for k in ("cpu", "cores", "threads", "system", "versions")}
        facts["runs"][name]["texts_equal"] = pd.Series(equal(run)).groupby(level=1).sum().to_dict()
        rows += by_span(run, name) if name == "agents" else by_task(run, name)
    kept = before[~before.run.isin(names.split(","))]
    pd.concat([kept, pd.DataFrame(rows)]).to_csv(out, index=False)
    about.write_text(json.dumps(facts, indent=1) + "\n")


def write_prompts(data: Path, runs: Path) -> None:
    """Files of prompts: four of MT-Bench's writing and humanities each, beginnings of news, and conversations."""
    questions = read(data / "mt_bench.jsonl")
    prose = [q for kind in ("writing", "humanities") for q in [q for q in questions if q["category"] == kind][:4]]
    asked = [{"id": q.get("id", q.get("question_id")), "category": "prose", "prompt": q["turns"][0]} for q in prose]
    write(runs / "prose.jsonl", asked)
    words = "Repeat this text word for word, and write nothing else:\n\n"
    news = [(str(n["id"]), " ".join(n["article"].split()[:60])) for n in read(data / "cnn_dm_test.jsonl")[:6]]
    write(runs / "repeat.jsonl", [{"id": i, "category": "repeat", "prompt": words + text} for i, text in news])
    talks = read(data / "agent_trajectories.jsonl")
    write(runs / "agents.jsonl", [talk for talk in talks if talk["id"] in AGENTS])


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def by_task(run: Path, name: str) -> Iterator[dict[str, Any]]:
    """A row for each task and method of a run."""
    table, same = pd.read_parquet(run / "summary.parquet"), equal(run)
    for row in table[table.task != "average"].to_dict("records"):
        yield {
            "run": name,
            "workload": row["task"],
            "method": row["method"],
            "documents": row["documents"],
            "equal": same[row["task"], row["method"]],
            **{column: row[column] for column in COLUMNS},
        }


def equal(run: Path) -> dict[tuple[str, str], int]:
    """How many texts of each task and method are vanilla's, token for token."""
    samples = pd.read_parquet(run / "samples.parquet").query("not warmup")
    texts = samples.set_index(["task", "doc_id", "method"]).tokens.map(tuple).unstack()
    same = texts.apply(lambda column: column == texts.vanilla)
    counts: dict[tuple[str, str], int] = same.groupby("task").sum().stack().to_dict()
    return counts


def by_span(run: Path, name: str) -> Iterator[dict[str, Any]]:
    """A row for each span of the context and method of a run."""
    for row in context(StoredRun(run)).places.rename(columns=PLACED).to_dict("records"):
        span = f"agent {row['from']:.0f} to {row['to'] - 1:.0f}"
        known = {column: row[column] for column in (PLACED.get(name, name) for name in PLACES)}
        yield {"run": name, "workload": span, "method": row["method"], "documents": row["documents"]} | known


if __name__ == "__main__":
    main(*sys.argv[1:])
