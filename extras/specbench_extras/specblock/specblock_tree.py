"""The tree of SpecBlock's blocks (arXiv 2605.07243): it branches where the rank head expects the right token lower."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Slots:
    """What the K slots of a block say: their likeliest tokens, and the class of the right one's rank."""

    tokens: Sequence[Sequence[int]]  # [K, W], of the draft vocabulary, in falling order
    logs: Sequence[Sequence[float]]  # [K, W]: their log-probabilities
    classes: Sequence[int]  # [K]


def widths(classes: Sequence[int], branches: Sequence[int], first: int | None = None) -> list[int]:
    """How many tokens each slot of a block drafts for the tree, by its class; `first`, if given, is slot 0's.

    After a slot with 0 the block gives up: from there on each slot drafts its likeliest token, and nothing follows.
    """
    counts = [branches[one] for one in classes]
    if first is not None:
        counts[0] = first
    end = counts.index(0) if 0 in counts else len(counts)
    return [*counts[:end], *[0] * (len(counts) - end)]


class BlockTree:
    """The tree that the blocks of a round grow.

    A block continues a node: its likeliest tokens follow one another, and a slot's other tokens are their siblings. A
    node's value is the log-probability of its path. If two blocks draft a token in one place, it is one node, of the
    higher value.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []  # of each node, of the draft vocabulary
        self.parents: list[int] = []  # -1: the context
        self.values: list[float] = []
        self.rows: list[int] = []  # the drafter's row that has drafted the node, after which a further block reads
        self._places: dict[tuple[int, int], int] = {}  # nodes by parent and token
        self._open: dict[int, None] = {}  # nodes of the last blocks at which a further one may begin, in order
        self._begun: set[int] = set()  # nodes at which a block has begun

    def add(self, start: int, row: int, slots: Slots, counts: Sequence[int]) -> None:
        """Add a block after the node `start` (-1: the context), whose slots are the drafter's rows from `row` on.

        `counts` are `widths`. A further block may begin at each token of a slot that has several, and at the last
        slot's.
        """
        parent, value = start, self.values[start] if start >= 0 else 0.0
        last = len(counts) - 1
        for slot, count in enumerate(counts):
            drafted = list(zip(slots.tokens[slot], slots.logs[slot], strict=True))[: max(count, 1)]
            nodes = [self._node(parent, token, value + log, row + slot) for token, log in drafted]
            if count > 1 or (count and slot == last):
                self._open.update(dict.fromkeys(nodes))
            parent, value = nodes[0], self.values[nodes[0]]

    def _node(self, parent: int, token: int, value: float, row: int) -> int:
        """The node of a token after `parent`, which is made unless it is there."""
        node = self._places.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
            self.values.append(value)
            self.rows.append(row)
        elif value > self.values[node]:
            self.values[node], self.rows[node] = value, row
        return node

    def starts(self, most: int) -> list[int]:
        """The nodes of highest value at which the next blocks begin, at most `most`; each is named once."""
        waiting = [node for node in self._open if node not in self._begun]
        self._open.clear()
        chosen = sorted(waiting, key=lambda node: -self.values[node])[:most]
        self._begun.update(chosen)
        return chosen

    def best(self, most: int) -> tuple[list[int], tuple[int, ...], list[int]]:
        """The `most` nodes of highest value: their tokens, their parents among them, and which nodes they are.

        They are a tree, since no child is better than its parent, and of equals the earlier one is taken.
        """
        chosen = sorted(sorted(range(len(self.tokens)), key=lambda node: -self.values[node])[:most])
        numbers = {node: number for number, node in enumerate(chosen)} | {-1: -1}
        return [self.tokens[node] for node in chosen], tuple(numbers[self.parents[node]] for node in chosen), chosen
