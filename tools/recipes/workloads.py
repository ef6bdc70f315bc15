"""What drafts are worth on a real pair by workload: prose, code, repetition, long prompts, and an agent's turns.

    python tools/recipes/workloads.py smollm2 DATA runs/workloads results/reference/workloads-smollm2.csv

DATA holds mt_bench.jsonl, humaneval_test.jsonl, cnn_dm_test.jsonl and agent_trajectories.jsonl; `qwen2.5-coder` is
the other pair. A last argument such as `prose,code` takes some of the runs; those that are there already are read, and
unfinished ones go on. No times are taken. `equal` counts texts that are vanilla's, all of them where rows are equal bit
for bit. Next to the CSV stands a JSON file that says how. Rows of the agent are by the tokens before a round; its
intervals are over conversations.
"""

import json
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
RUN = "specbench run --pair {pair} --runtime static --untimed"
LONG = "marshmallow-code__marshmallow-1867-7"
RUNS = {
    "prose": f"{RUN} --batch 8 {ALL} --max-new-tokens 64 --prompts RUNS/prose.jsonl",
    "code": f"{RUN} --batch 8 {ALL} --max-new-tokens 64 --task humaneval --apply-chat-template --limit 8 "
    "--data-dir DATA --allow-code-execution",
    "repeat": f"{RUN} --no-share-prefix --batch 6 {ALL} --max-new-tokens 64 --prompts RUNS/repeat.jsonl",
    "everyday": f"{RUN} --batch 4 {ALL} --max-new-tokens 64 --suite everyday --limit 8",
    "agent-long": f"{RUN} {FEW} --max-new-tokens 32 --trajectories RUNS/one.jsonl",
}
# A pair's name among options, with the type that its forwards are fastest in.
PAIRS = {"smollm2": "smollm2", "qwen2.5-coder": "qwen2.5-coder --dtype bfloat16"}
AGENT = ("agent-long",)
COLUMNS = ["acceptance_rate", "alpha", "tau", "tau_low", "tau_high"]


def main(pair: str, data: str, folder: str, out: str, names: str = ",".join(RUNS)) -> None:
    runs = Path(folder)
    runs.mkdir(parents=True, exist_ok=True)
    write_prompts(Path(data), runs)
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {"what": "tokens a round of drafts by workload, greedy", "pair": pair, "runs": {}}
    for name in names.split(","):
        run, command = runs / name, RUNS[name].format(pair=PAIRS[pair])
        if not (run / "summary.parquet").exists():
            begun = (run / "manifest.json").exists()
            code = " --allow-code-execution" * ("--allow-code" in command)
            words = f"specbench run --resume {run}{code}" if begun else f"{command} --out {run}"
            program, *rest = words.replace("RUNS", folder).replace("DATA", data).split()
            subprocess.run([str(Path(sys.executable).with_name(program)), *rest], check=True)
        there = json.loads((run / "manifest.json").read_text())
        facts["commit"] = there["environment"].get("git")
        facts["machine"] = {k: there["environment"][k] for k in ("cpu", "cores", "threads", "system", "versions")}
        facts["runs"][name] = {"command": command, "started": there["started"], "load": there["environment"]["load"]}
        rows += by_span(run, name) if name in AGENT else by_task(run, name)
    pd.DataFrame(rows).to_csv(out, index=False)
    Path(out).with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")


def write_prompts(data: Path, runs: Path) -> None:
    """Files of prompts: four of MT-Bench's writing and humanities each, beginnings of news, and a conversation."""
    questions = read(data / "mt_bench.jsonl")
    prose = [q for kind in ("writing", "humanities") for q in [q for q in questions if q["category"] == kind][:4]]
    asked = [{"id": q.get("id", q.get("question_id")), "category": "prose", "prompt": q["turns"][0]} for q in prose]
    write(runs / "prose.jsonl", asked)
    words = "Repeat this text word for word, and write nothing else:\n\n"
    news = [(str(n["id"]), " ".join(n["article"].split()[:60])) for n in read(data / "cnn_dm_test.jsonl")[:6]]
    write(runs / "repeat.jsonl", [{"id": i, "category": "repeat", "prompt": words + text} for i, text in news])
    talks = read(data / "agent_trajectories.jsonl")
    write(runs / "one.jsonl", [talk for talk in talks if talk["id"] == LONG])


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
    for row in context(StoredRun(run)).places.to_dict("records"):
        span = f"agent {row['from']:.0f} to {row['to'] - 1:.0f}"
        known = {column: row[column] for column in COLUMNS if column in row}
        yield {"run": name, "workload": span, "method": row["method"], "documents": row["documents"]} | known


if __name__ == "__main__":
    main(*sys.argv[1:])
