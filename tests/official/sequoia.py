"""Makes sequoia.json: the trees that Sequoia's own search finds, and what its own test accepts. Call with a checkout:

python tests/official/sequoia.py SEQUOIA tests/official/sequoia.json

SEQUOIA is github.com/Infini-AI-Lab/Sequoia at 0ff3ff71. Its tree_search.py is run with random acceptance rates, for one
size of tree at which drafts cost nothing; of Tree/SpecTree.py accept_step is called, as `verify` calls it, with random
numbers and distributions given.
"""

import contextlib
import json
import os
import random
import runpy
import sys
import tempfile
import types
from pathlib import Path

import torch

SIZE = 7  # of the vocabulary


def search(number: int, checkout: str) -> dict:
    """Rates by rank, the expected tokens of trees of `size` nodes by levels, and the best one's children."""
    rng = random.Random(number)
    rates = sorted((round(0.01 + 0.9 * rng.random() ** 2, 3) for _ in range(3 + number % 3)), reverse=number % 3 > 0)
    size, depth, folder = 4 + number % 13, 4 + number % 4, Path(tempfile.mkdtemp())
    torch.save(torch.tensor([0.0, *rates, 0.0]), folder / "rates.pt")  # the last one is left out there
    config = {"acceptance_rate_vector": str(folder / "rates.pt"), "max_depth": depth, "max_budget": size}
    config |= {"draft_time": 0, "valid_budget": [size], "target_time": [1], "dst": str(folder / "tree.pt")}
    (folder / "config.json").write_text(json.dumps(config))
    sys.argv = ["tree_search.py", "--config", str(folder / "config.json")]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        found = runpy.run_path(str(Path(checkout, "tree_search.py")))
    expected = [round(value, 6) if value > 0 else None for value in found["results"][size].tolist()[1:]]
    level, counts = [0], []
    while level:
        counts.append([len(found["Successors"][node]) for node in level])
        level = [child for node in level for child in found["Successors"][node]]
    return {"rates": rates, "size": size, "levels": depth - 1, "expected": expected, "counts": counts}


def acceptance(number: int, tree) -> dict:
    """A tree that is drawn without replacement, and the path that is accepted; what is left there, if it ends there."""
    rng = random.Random(1000 + number)
    parents = [-1]
    while len(parents) < 3 + number % 9:
        parent = rng.randrange(-1, len(parents))
        parents += [parent] * (parents.count(parent) < SIZE - 1)
    parents.sort()
    children = [[node for node, parent in enumerate(parents) if parent == place] for place in range(-1, len(parents))]
    tokens = [0] * len(parents)
    for siblings in children:
        for node, token in zip(siblings, rng.sample(range(SIZE), SIZE), strict=False):
            tokens[node] = token
    target, draft = ([[round(rng.gauss(0, 1), 2) for _ in range(SIZE)] for _ in range(len(tokens) + 1)] for _ in "pq")
    uniform = [round(rng.random(), 4) for _ in tokens]
    self = types.SimpleNamespace(ground_truth_len=1, temperature=1.0, dtype=torch.float64, residual_graph=tree.residual)
    self.target_logits = torch.tensor(target, dtype=torch.float64).softmax(-1)
    self.draft_logits = torch.tensor(draft, dtype=torch.float64)
    self.Successors = [[node + 1 for node in siblings] for siblings in children]
    self.tokens, self.r = torch.tensor([0, *tokens]), torch.tensor([0, *uniform], dtype=torch.float64)
    path = [0]
    while True:
        found, left = tree.SpecTree.accept_step(self, path[-1])
        if found == -1:
            break
        path.append(found)
    given = {"tokens": tokens, "parents": parents, "target": target, "draft": draft, "uniform": uniform}
    return {**given, "path": [node - 1 for node in path[1:]], "left": [round(value, 6) for value in left.tolist()]}


def main(checkout: str, out: str, count: str = "24") -> None:
    for name in ("Engine", "Engine.Engine"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["Engine.Engine"].__dict__.update(GraphInferenceEngine=object, GraphInferenceEngineTG=object)
    sys.path.insert(0, checkout)
    import utils
    from Tree import SpecTree as tree

    tree.residual = utils.get_residual
    cases = {"trees": [search(number, checkout) for number in range(int(count))]}
    cases["accepted"] = [acceptance(number, tree) for number in range(int(count))]
    lists = (f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in cases.items())
    Path(out).write_text("{" + ",\n".join(lists) + "}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
