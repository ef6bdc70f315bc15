"""The sequences of llama.cpp that hold an open tree: one for each leaf, which has the whole path to it."""

from collections.abc import Sequence
from typing import NamedTuple

from specbench.engine.runtimes.types import Unsupported

TRUNK = 0  # the sequence of the context; the first leaf after it goes on in it


class Copy(NamedTuple):
    """The beginning of a sequence that a new one shares: its positions below `end`."""

    source: int
    target: int
    end: int


class Branches:
    """Which sequence has the path to each token of a tree after `root` tokens."""

    def __init__(self, root: int, most: int) -> None:
        self.root, self.most = root, most
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.holders: list[int] = []  # of each token, a sequence that has the path to it
        self.tips: dict[int, int] = {TRUNK: -1}  # the last token of each sequence; -1: of the context

    def grow(self, parents: Sequence[int]) -> tuple[list[Copy], list[list[int]]]:
        """Add tokens with these parents, in place; what must be copied first, and the sequences of each new token.

        Raises Unsupported if there are more leaves than sequences.
        """
        begin = len(self.parents)
        self.parents += parents
        self.depths += [0] * len(parents)
        for node in range(begin, len(self.parents)):
            parent = self.parents[node]
            self.depths[node] = self.depths[parent] + 1 if parent >= 0 else 0
        copies: list[Copy] = []
        sequences: list[list[int]] = [[] for _ in parents]
        inner = set(parents)
        for leaf in (node for node in range(begin, len(self.parents)) if node not in inner):
            path, above = [], leaf
            while above >= begin:
                path.append(above)
                above = self.parents[above]
            sequence = self._sequence(above, copies)
            self.tips[sequence] = leaf
            for node in path:
                sequences[node - begin].append(sequence)
        self.holders += [own[0] for own in sequences]
        return copies, sequences

    def _sequence(self, above: int, copies: list[Copy]) -> int:
        """A sequence that ends with the token `above`: the one that does, or a new one."""
        source = self.holders[above] if above >= 0 else TRUNK
        if self.tips[source] == above:
            return source
        if (new := len(self.tips)) >= self.most:
            raise Unsupported(
                f"the llamacpp runtime has trees of up to {self.most} leaves; choose a smaller tree, or use --runtime "
                "static"
            )
        self.tips[new] = above
        copies.append(Copy(source, new, self.root + (self.depths[above] + 1 if above >= 0 else 0)))
        return new

    def holder(self, path: Sequence[int]) -> int:
        """The sequence that has a path of tokens from the root on. Raises ValueError if they are none."""
        for before, token in zip((-1, *path), path, strict=False):
            if self.parents[token] != before:
                raise ValueError(f"{list(path)} is no path of the tree")
        return self.holders[path[-1]] if path else TRUNK
