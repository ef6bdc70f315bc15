"""Weights that make logits NaN or infinite: the document fails, with the model and the place named; others go on."""

import re
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from faults import place
from faults.bench import BLOCK, TEMPERATURES, Bench, Fault, Outcome, expect, last_words
from faults.child import CONTEXT, Command
from specbench.results import records

ROLES, RUNTIMES = ("target", "draft"), ("eager", "static")
LARGE, COLUMN = 1.7e38, 1  # times a hidden state of more than 2 it is infinite in float32
WHAT = (("nan", "embedding"), ("inf", "output"))


def faults(bench: Bench) -> list[Fault]:
    kinds = [(role, *what, t, runtime) for role in ROLES for what in WHAT for t in TEMPERATURES for runtime in RUNTIMES]
    kinds = kinds[1:2] if bench.short else kinds
    return [Fault("NaN or infinite logits", [partial(not_finite, bench, *kind) for kind in kinds])]


def not_finite(
    bench: Bench, role: str, value: str, where: str, temperature: float, runtime: str, work: Path
) -> Outcome:
    """A token that some texts meet and others do not has a NaN embedding, or a weight in the output that overflows."""
    spoilt = (bench.place, work / "pair", role, value, where, chosen(bench, temperature))
    process = CONTEXT.Process(target=spoil, args=spoilt)
    process.start()
    process.join()
    folder = work / "run"
    words = place.run_words(work / "pair", folder, "--temperature", temperature, "--runtime", runtime)
    command = Command(words, work / "said", {"block": BLOCK})
    code, said = command.end(), command.said()
    what = f"{value} in the {where} of the {role}, temperature {temperature:g}, {runtime}"
    try:
        rows = [row for row in records.read_rows(folder, "samples").to_pylist() if not row["warmup"]]
    except (OSError, ValueError) as unread:
        return Outcome(1, 0, 0, [f"{what}: {unread}; exit code {code}: {last_words(said)}"])
    failed = [row for row in rows if row["finish"] == "error"]
    alone = {row["method"] for row in failed} & ({"vanilla", "swift"} if role == "draft" else set())
    return expect(
        {
            f"exit code 3, but {code}: {last_words(said)}": code == 3,
            "some documents failed": failed,
            "others went on": len(failed) < len(rows),
            f"the model and the place are named: {last_words(failed[0]['error']) if failed else ''}": all(
                tells(row, role) for row in failed
            ),
            f"methods without the draft go on, but {sorted(alone)} failed": not alone,
            "every cell has its row": len(rows) == len(bench.facts[0.0]["samples"]),
        },
        what,
    )


def tells(row: dict[str, Any], role: str) -> bool:
    """Whether a failed row names the model and the token behind which it failed; SWIFT's draft is its target."""
    roles = "target|draft" if row["method"] == "swift" and role == "target" else role
    match = re.search(rf"NotFinite: the logits of the ({roles}) are not finite after token (\d+)", row["error"])
    return match is not None and row["prompt_tokens"] <= int(match[2]) < row["prompt_tokens"] + 40


def chosen(bench: Bench, temperature: float) -> int:
    """A token that is in some of the uninterrupted texts but not in all."""
    texts = [eval(row[9]) for row in bench.facts[temperature]["samples"] if row[3] == "'vanilla'"]
    counts = Counter(token for text in texts for token in set(text[:-1]))
    return min(counts, key=lambda token: (abs(counts[token] - len(texts) / 2), token))


def spoil(pair: Path, to: Path, role: str, value: str, where: str, token: int) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(pair, to)
    file = to / role / "model.safetensors"
    weights = load_file(file)
    name = "model.embed_tokens.weight" if where == "embedding" else "lm_head.weight"
    if where == "embedding":
        weights[name][token, 0] = float(value)
    else:  # finite, but too large for some hidden states and not for others
        weights[name][token, COLUMN] = LARGE
    save_file(weights, file, {"format": "pt"})
