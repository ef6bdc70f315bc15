"""A pool of n-grams that were seen before, and the tree that several continuations make."""

from collections.abc import Iterable

Ngram = tuple[int, ...]


class Pool:
    """Continuations of tokens, at most `size` of each token: a new one replaces the least recently added."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._continuations: dict[int, dict[Ngram, None]] = {}  # token -> in the order in which they were last added

    def add(self, ngram: Ngram) -> None:
        """Note, in place, that the first token of an n-gram was followed by the others."""
        token, *rest = ngram
        continuations = self._continuations.setdefault(token, {})
        continuations.pop(tuple(rest), None)
        continuations[tuple(rest)] = None
        if len(continuations) > self.size:
            del continuations[next(iter(continuations))]

    def after(self, token: int) -> list[Ngram]:
        """The continuations of a token, the most recently added last. Reading them makes none more recent."""
        return list(self._continuations.get(token, ()))


def trie(continuations: Iterable[Ngram]) -> tuple[list[int], tuple[int, ...]]:
    """Continuations of one context as a tree that holds each common prefix once: tokens [K] and parents [K].

    Parents are as in a `Draft`; siblings are different tokens.
    """
    tokens: list[int] = []
    parents: list[int] = []
    nodes: dict[tuple[int, int], int] = {}
    for continuation in continuations:
        at = -1
        for token in continuation:
            node = nodes.setdefault((at, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(at)
            at = node
    return tokens, tuple(parents)
