"""N-grams that were seen before, and how several continuations become one draft."""

from collections.abc import Iterable

Ngram = tuple[int, ...]


class Pool:
    """Continuations by the token that they follow, at most `size` of each: the least recently added makes room."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._known: dict[int, dict[Ngram, None]] = {}  # in the order in which they were last added

    def add(self, ngram: Ngram) -> None:
        """Note, in place, that the tokens of an n-gram behind its first one followed that."""
        token, *rest = ngram
        known = self._known.setdefault(token, {})
        known.pop(tuple(rest), None)
        known[tuple(rest)] = None
        if len(known) > self.size:
            del known[next(iter(known))]

    def behind(self, token: int) -> list[Ngram]:
        """What followed a token, the most recently added last. Looking at it makes nothing more recent."""
        return list(self._known.get(token, ()))


def trie(continuations: Iterable[Ngram]) -> tuple[list[int], tuple[int, ...]]:
    """Continuations of one context as a tree that holds each common prefix once: tokens [K] and parents [K].

    Parents are those of a `Draft`; tokens that follow the same one differ.
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
