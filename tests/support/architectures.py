"""What methods do on tiny models of every architecture of `tiny_architectures`: the table that `specbench list` prints.

    python tests/support/architectures.py --out specbench/engine/models/architectures.csv

A cell is `exact` (the greedy text is vanilla's), `differs` (a defect), or the reason of a refusal. `vanilla` says how
many distinct tokens of its text there are, which whole forwards without a cache say too; a text of few proves little.
"""

import argparse
import csv
import sys
import textwrap
from pathlib import Path

import oracle
import tiny_architectures as tiny
import torch
import transformers
from gates import Words, decode, with_settings
from tiny_heads import in_file

from specbench.config import UserError
from specbench.engine.models.eagle_head import layers_read
from specbench.engine.models.pair import Pair, check_rollback, reads_trees
from specbench.engine.runtimes.static import Static
from specbench.engine.runtimes.types import Runtime, Unsupported
from specbench.engine.session import Session
from specbench.methods.heads.eagle3 import Eagle3, EagleDrafter, eagle_head
from specbench.training.eagle3.fit import new_head

COUNT = 32  # tokens of a text; with the prompt twice the window and more
METHODS = {"sps": {}, "rsd": {"search": "constant", "branching": (3, 2)}, "pld": {}, "swift": {}}
COLUMNS = ("architecture", "model", "vanilla", "trees", *METHODS, "eagle3", "static")
FEWEST = 8  # distinct tokens of a text that proves something


def row(kind: str) -> dict[str, str]:
    """A row of the table; a model that is refused has its reason under `vanilla`."""
    try:
        target, draft = tiny.pair(kind)
    except Exception as error:  # a configuration that this version of transformers does not build
        return {"architecture": kind, "vanilla": f"not built: {reason(error)}"}
    cells = {"architecture": kind, "model": type(target).__name__}
    try:
        session = Session(target, "target")
        check_rollback(session)
    except UserError as error:
        return cells | {"vanilla": reason(error).removeprefix(f"{cells['model']} cannot be used: ")}
    trees = reads_trees(session)
    chains_only = frozenset() if trees else frozenset(("target", "draft"))
    pair = Pair("tiny", {"target": target, "draft": draft}, Words(), chains_only=chains_only)
    prompt, text = liveliest(pair)
    if text != oracle.greedy(target, prompt, COUNT):
        return cells | {"vanilla": "differs"}
    cells |= {"vanilla": str(len(set(text))), "trees": "yes" if trees else "chains only"}
    for name, changes in METHODS.items():
        cells[name] = verdict(lambda name=name, changes=changes: with_settings(name, pair, 4, changes), prompt, text)
    cells["eagle3"] = verdict(lambda: eagle3(pair), prompt, text)
    cells["static"] = verdict(lambda: with_settings("sps", on(pair, Static()), 4, {}), prompt, text)
    return cells


def liveliest(pair: Pair) -> tuple[list[int], list[int]]:
    """Of a few prompts the one whose greedy text has the most distinct tokens, and that text."""
    vanilla = with_settings("vanilla", pair, 4, {})
    prompts = [tiny.prompt(seed=seed) for seed in range(6)]
    texts = [decode(vanilla, prompt, COUNT)[0] for prompt in prompts]
    return max(zip(prompts, texts, strict=True), key=lambda both: len(set(both[1])))


def verdict(build, prompt: list[int], text: list[int]) -> str:
    try:
        return "exact" if decode(build(), prompt, COUNT)[0] == text else "differs"
    except (UserError, Unsupported) as error:
        return reason(error)


def on(pair: Pair, runtime: Runtime) -> Pair:
    for model in pair.models.values():
        runtime.runner(model)
    return Pair("tiny", pair.models, Words(), runtime=runtime, chains_only=pair.chains_only)


def eagle3(pair: Pair) -> Eagle3:
    """EAGLE-3 with a random head: its drafts are bad, the text must be vanilla's all the same."""
    target = pair.models["target"]
    head = eagle_head(in_file(new_head(target, tuple(range(0, 96, 2)), 0)), target, 96)
    session = Session(head, "draft", vocabulary=head.config.vocab_size)
    return Eagle3(pair.session("target"), EagleDrafter(head, session, layers_read(target), 16, 4, 3), {})


def reason(error: Exception) -> str:
    return textwrap.shorten(str(error), 240, placeholder=" …")


def main(kinds: list[str], out: Path) -> None:
    torch.set_num_threads(1)
    with out.open("w", newline="") as file:
        file.write(f"# transformers {transformers.__version__}\n")
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for kind in kinds:
            try:
                cells = row(kind)
            except Exception as error:
                cells = {"architecture": kind, "vanilla": f"ERROR {type(error).__name__}: {reason(error)}"}
            print(cells, file=sys.stderr, flush=True)
            writer.writerow(cells)
            file.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(tiny.FIELDS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    main(options.only, options.out)
