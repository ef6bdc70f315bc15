"""Twenty schemas on SmolLM2: are the texts of lossless methods vanilla's, and valid by another validator?

    python tools/recipes/constrained_texts.py runs/schemas results/reference/constrained-smollm2.json

Decodes, or goes on with the run in the folder. The validator is jsonschema, which has no part in decoding; a text that
the limit cut is counted apart.
"""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pandas as pd

PROMPTS = "tools/recipes/schemas.jsonl"
METHODS = ("pld", "suffix", "lookahead", "recycling", "sps", "mdsd")
COMMAND = f"specbench run --pair smollm2 --prompts {PROMPTS} --max-new-tokens 48 " + " ".join(
    f"--method {name}" for name in METHODS
)


def main(folder: str, out: str) -> None:
    run = Path(folder)
    if not (run / "summary.parquet").exists():
        begun = (run / "manifest.json").exists()
        words = ["specbench", "run", "--resume", folder] if begun else [*COMMAND.split(), "--out", folder]
        subprocess.run([str(Path(sys.executable).with_name(words[0])), *words[1:]], check=True)
    manifest = json.loads((run / "manifest.json").read_text())
    schemas = {line["id"]: line["schema"] for line in map(json.loads, Path(PROMPTS).read_text().splitlines())}
    samples = pd.read_parquet(run / "samples.parquet")
    samples = samples[~samples.warmup].set_index(["method", "doc_id"])
    texts = []
    for doc, (name, _, _) in enumerate(manifest["prompts"]):
        vanilla = samples.loc["vanilla", doc]
        equal = [method for method in METHODS if list(samples.loc[method, doc].tokens) == list(vanilla.tokens)]
        texts.append({"id": name, "text": vanilla.text, "is": kind(vanilla, schemas[name]), "equal": equal})
    rounds = pd.read_parquet(run / "rounds.parquet")
    of_decoding = rounds[~rounds.warmup & (rounds["round"] > 0)].groupby("method")
    there = manifest["environment"]
    machine = {key: there[key] for key in ("cpu", "cores", "threads", "system", "python", "versions")}
    facts = {
        "what": "greedy texts of SmolLM2 under twenty schemas: equal to vanilla's by token, valid by jsonschema",
        "command": COMMAND,
        "commit": there["git"],
        "started": manifest["started"],
        "machine": machine | {"llguidance": version("llguidance"), "jsonschema": version("jsonschema")},
        "runtime": manifest["runtime"]["name"],
        "load": there["load"],
        "texts": len(texts),
        "equal": {method: sum(method in text["equal"] for text in texts) for method in METHODS},
        "kinds": pd.Series([text["is"] for text in texts]).value_counts().to_dict(),
        "errors": int(samples.error.notna().sum()),
        "accepted": (of_decoding.accepted.sum() / of_decoding.drafted.sum()).round(4).dropna().to_dict(),
        "mask_share_of_decoding": (of_decoding.mask_seconds.sum() / of_decoding.seconds.sum()).round(4).to_dict(),
        "all": texts,
    }
    Path(out).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    print(facts["equal"], facts["kinds"], "of", len(texts))


def kind(sample: pd.Series, schema: object) -> str:
    """`valid`, `invalid`, or `cut` at the limit of new tokens before it is valid."""
    try:
        jsonschema.validate(json.loads(sample.text), schema)
    except (ValueError, jsonschema.ValidationError):
        return "cut" if sample.finish == "length" else "invalid"
    return "valid"


if __name__ == "__main__":
    main(*sys.argv[1:])
