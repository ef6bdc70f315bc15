"""Makes opt_tree.json: draft trees of OPT-Tree's own code. Call with a folder that holds a checkout of it:

python tests/official/opt_tree.py OPTTREE tests/official/opt_tree.json

OPTTREE is github.com/Jikai0Wang/OPT-Tree at 4f87f54e. Its file opt_classic/tree.py is read; called is Tree.update, as
`draft` in opt_classic/model.py does, with the distributions of `chances` in place of a draft model's.
"""

import sys

import torch

SIZE = 12  # of the vocabulary


def chances(path: tuple[int, ...], seed: int) -> list[float]:
    """Logits after a path."""
    mixed = seed
    for token in path:
        mixed = (31 * mixed + 7 * token + 3) % 9973
    return [((mixed + 1) * (word + 2) * (word + 9) % 1009 + word / 64) / 60 for word in range(SIZE)]


def case(number: int, official) -> dict:
    nodes, threshold, depth = 2 + number % 10, (0.1, 0.3, 0.5, 0.7)[number % 4], 3 + number % 8
    tree, level, rows = official.Tree(nodes, "cpu", threshold, depth), [()], [chances((), number)]
    while True:
        output = tree.update(torch.softmax(torch.tensor([rows]), -1, dtype=torch.float32))
        tokens, parents = output["input_ids"].tolist(), output["parent_last"].tolist()
        if output["is_final"]:
            break
        above = [()] * nodes if len(level) == 1 else level
        first = level == [()]
        level = [(*(() if first else above[parent]), token) for parent, token in zip(parents, tokens, strict=True)]
        rows = [chances(path, number) for path in level]
    paths: list[tuple[int, ...]] = []
    for place, token, parent in zip(output["position_ids"].tolist(), tokens, parents, strict=True):
        paths.append((*(paths[parent] if place > 1 else ()), token))
    size = {"nodes": nodes, "threshold": threshold, "max_depth": depth}
    return {"seed": number, **size, "paths": sorted(map(list, paths))}


def main(checkout: str, out: str, count: str = "40") -> None:
    from checkout import module, store  # the tests read this file, too

    store(case, module(checkout, "opt_classic/tree.py"), out, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
