"""Every token of an open tree has a sequence that holds the path to it, however the tree grew."""

import random

import pytest

from specbench.engine.runtimes.types import Unsupported
from specbench_extras.llamacpp.branches import TRUNK, Branches

ROOT = 5


class Cells:
    """What llama.cpp would hold: of each sequence, its tokens by position."""

    def __init__(self) -> None:
        self.sequences = {TRUNK: {place: f"context {place}" for place in range(ROOT)}}

    def feed(self, tree: Branches, parents: list[int]) -> None:
        first = len(tree.parents)
        copies, sequences = tree.grow(parents)
        for source, target, end in copies:
            assert target not in self.sequences
            self.sequences[target] = {p: token for p, token in self.sequences[source].items() if p < end}
        for node, own in enumerate(sequences, first):
            assert own
            for sequence in own:
                held = self.sequences[sequence]
                assert max(held) + 1 == ROOT + tree.depths[node]  # llama.cpp takes no gaps
                held[max(held) + 1] = node


def path_to(parents: list[int], node: int) -> list[int]:
    return [*(path_to(parents, parents[node]) if parents[node] >= 0 else []), node]


@pytest.mark.parametrize("seed", range(20))
def test_a_sequence_has_the_path_to_each_token(seed):
    rng = random.Random(seed)
    tree, cells, parents = Branches(ROOT, 256), Cells(), []
    for _ in range(rng.randint(1, 5)):
        new = []
        for _ in range(rng.randint(1, 9)):
            new.append(rng.randint(-1, len(parents) + len(new) - 1))
        cells.feed(tree, new)
        parents += new
        for node in range(len(parents)):
            path = path_to(parents, node)
            held = cells.sequences[tree.holder(path)]
            assert [held[place] for place in range(ROOT)] == [f"context {place}" for place in range(ROOT)]
            assert [held[ROOT + depth] for depth in range(len(path))] == path


def test_a_chain_needs_no_further_sequence():
    tree, cells = Branches(ROOT, 256), Cells()
    cells.feed(tree, [-1, 0, 1])
    cells.feed(tree, [2])
    cells.feed(tree, [3, 4])
    assert cells.sequences.keys() == {TRUNK}


def test_too_many_leaves_and_what_is_no_path_are_refused():
    tree = Branches(ROOT, 3)
    tree.grow([-1, -1, 0])
    with pytest.raises(ValueError, match="no path"):
        tree.holder([0, 1])
    tree.grow([1])
    tree.grow([-1])
    with pytest.raises(Unsupported, match="trees of up to 3 leaves; choose a smaller tree, or use --runtime static"):
        tree.grow([-1])
