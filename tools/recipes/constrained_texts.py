"""Twenty schemas on SmolLM2: are the texts of lossless methods vanilla's, and valid by another validator?

    python tools/recipes/constrained_texts.py runs/schemas results/reference/constrained-smollm2.json

Decodes, or goes on with the runs in the folder. The validator is jsonschema, which has no part in decoding; a text that
the limit cut is counted apart. `mdsd` fails on this pair, whose draft in 4 bits reads no trees.
"""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pandas as pd

PROMPTS = "tools/recipes/schemas.jsonl"
COMMAND = f"specbench run --pair smollm2 --prompts {PROMPTS} --max-new-tokens 48"
RUNS = (("pld", "suffix", "lookahead", "recycling", "sps", "mdsd"), ("grammar", "sam"))
FAILED = 3  # the exit code of a run with samples that failed


def main(folder: str, out: str) -> None:
    schemas = {line["id"]: line["schema"] for line in map(json.loads, Path(PROMPTS).read_text().splitlines())}
    runs = [of_run(Path(folder) / str(number), methods, schemas) for number, methods in enumerate(RUNS, 1)]
    facts = {"what": "greedy texts of SmolLM2 under twenty schemas: equal to vanilla's by token, valid by jsonschema"}
    Path(out).write_text(json.dumps(facts | {"runs": runs}, indent=1, ensure_ascii=False) + "\n")
    for run in runs:
        print(run["equal"], run["kinds"], "of", run["texts"])


def of_run(run: Path, methods: tuple[str, ...], schemas: dict[str, object]) -> dict[str, object]:
    """One run, decoded unless it is there: its command, machine and figures."""
    command = COMMAND + "".join(f" --method {name}" for name in methods)
    if not (run / "summary.parquet").exists():
        begun = (run / "manifest.json").exists()
        words = ["specbench", "run", "--resume", str(run)] if begun else [*command.split(), "--out", str(run)]
        code = subprocess.run([str(Path(sys.executable).with_name(words[0])), *words[1:]], check=False).returncode
        if code not in (0, FAILED):
            sys.exit(code)
    manifest = json.loads((run / "manifest.json").read_text())
    there = manifest["environment"]
    samples, rounds = (pd.read_parquet(run / f"{name}.parquet") for name in ("samples", "rounds"))
    samples = samples[~samples.warmup].set_index(["method", "doc_id"])
    failed = samples[samples.finish == "error"].groupby("method").error.first()
    decoded = [method for method in methods if method not in failed]
    texts = []
    for doc, (name, _, _) in enumerate(manifest["prompts"]):
        vanilla = samples.loc["vanilla", doc]
        equal = [method for method in decoded if list(samples.loc[method, doc].tokens) == list(vanilla.tokens)]
        texts.append({"id": name, "text": vanilla.text, "is": kind(vanilla, schemas[name]), "equal": equal})
    of_decoding = rounds[~rounds.warmup & (rounds["round"] > 0)].groupby("method")
    seconds = of_decoding[["mask_seconds", "seconds"]].sum()
    return {
        "command": command,
        "commit": there["git"],
        "started": manifest["started"],
        "machine": {key: there[key] for key in ("cpu", "cores", "threads", "system", "python", "versions")}
        | {"llguidance": version("llguidance"), "jsonschema": version("jsonschema")},
        "runtime": manifest["runtime"]["name"],
        "load": there["load"],
        "texts": len(texts),
        "equal": {method: sum(method in text["equal"] for text in texts) for method in decoded},
        "failed": {method: error.strip().splitlines()[-1] for method, error in failed.items()},
        "kinds": pd.Series([text["is"] for text in texts]).value_counts().to_dict(),
        "accepted": (of_decoding.accepted.sum() / of_decoding.drafted.sum()).round(4).dropna().to_dict(),
        "tau": (of_decoding.committed.sum() / of_decoding.size()).round(4).to_dict(),
        "masks_of_decoding": (seconds.mask_seconds / seconds.seconds).round(4).to_dict(),
        "all": texts,
    }


def kind(sample: pd.Series, schema: object) -> str:
    """`valid`, `invalid`, or `cut` at the limit of new tokens before it is valid."""
    try:
        jsonschema.validate(json.loads(sample.text), schema)
    except (ValueError, jsonschema.ValidationError):
        return "cut" if sample.finish == "length" else "invalid"
    return "valid"


if __name__ == "__main__":
    main(*sys.argv[1:])
