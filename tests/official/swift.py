"""Makes swift.json: greedy draft trees of SWIFT's own code. Call with a folder that holds a checkout of it:

python tests/official/swift.py SWIFT tests/official/swift.json

SWIFT is github.com/hemingkx/SWIFT at 88caed75. Of its model/swift/utils.py swift_draft, get_choices_list,
generate_swift_buffers and generate_candidates are executed, as swift_forward calls them, with given logits of each step
in place of the target without its sublayers.
"""

import ast
import contextlib
import copy
import random
import sys
from pathlib import Path

import torch
from checkout import store

SIZE = 16  # of the vocabulary
WANTED = ("pad_path", "swift_draft", "get_choices_list", "generate_swift_buffers", "generate_candidates")


def case(number: int, code: dict) -> dict:
    rng = random.Random(number)
    rows = []
    for _ in range(25):
        row = [round(rng.gauss(0, 1), 2) for _ in range(SIZE)]
        row[rng.randrange(SIZE)] += rng.choice([1, 4, 5, 6, 7, 9])
        rows.append(row)
    steps = iter(rows)

    class Model:
        def self_draft(self):
            return contextlib.nullcontext()

        def model(self, **_):
            return [torch.tensor([[next(steps)]], dtype=torch.float64)]

        def lm_head(self, states):
            return states

    most = 25 if number % 2 else 3
    drafted, chances = code["swift_draft"](Model(), torch.tensor([[0]]), 0, [], torch.zeros(1), max_step_draft=most)
    buffers = code["generate_swift_buffers"](code["get_choices_list"](chances), device="cpu")
    last = torch.zeros(1, 1, dtype=torch.long)
    paths, _, _ = code["generate_candidates"](drafted, buffers["tree_indices"], buffers["retrieve_indices"], last, None)
    nodes = buffers["retrieve_indices"].tolist()
    both = [zip(*pair, strict=True) for pair in zip(paths.tolist(), nodes, strict=True)]
    found = [[token for token, node in pairs if node > 0] for pairs in both]
    return {"rows": rows[: len(chances)], "gamma": most, "paths": sorted(found)}


def main(checkout: str, out: str, count: str = "20") -> None:
    code: dict = {"torch": torch, "copy": copy, "TOPK": 10, "clone_past_key_values": lambda *_: None}
    tree = ast.parse(Path(checkout, "model/swift/utils.py").read_text())
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in WANTED]
    exec(compile(ast.Module(wanted, []), "utils.py", "exec"), code)
    store(case, code, out, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
