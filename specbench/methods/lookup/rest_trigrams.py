"""Tri-grams as a draft: which token follows two others, by a datastore and, if they adapt, by the text itself.

After ADED (arXiv 2407.12021): its tri-gram matrix learns from what the target says, and its drafts are found by a
search that weighs likely tokens against untried ones (PUCT).
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from specbench.engine.ngrams import Ngram
from specbench.methods.lookup.rest_datastore import END, Datastore

FOLLOWERS = 10  # how many of the most frequent tokens after two others are tried
REMEMBERED = 2**16  # pairs of tokens whose followers in the datastore are kept
C1, C2 = 1.25, 19652.0  # of PUCT, as in MuZero (our inference; ADED names its constants alike)


class Trigrams:
    """Followers of two tokens: their shares in a datastore, which `prior` seen tokens outweigh where it adapts."""

    def __init__(self, store: Datastore, hits: int, prior: float | None = None) -> None:
        self.store, self.hits, self.prior = store, hits, prior
        self._stored = lru_cache(REMEMBERED)(self._find)
        self.begin()

    def begin(self) -> None:
        """Forget what the last text taught."""
        self.seen: dict[Ngram, Counter[int]] = defaultdict(Counter)
        self._pair: Ngram = ()

    def read(self, tokens: Sequence[int]) -> None:
        """Count the tri-grams that end in these tokens, which follow those that were read before."""
        for token in tokens:
            self.learn(self._pair, {token: 1.0})
            self._pair = (*self._pair, token)[-2:]

    def learn(self, pair: Ngram, followers: dict[int, float]) -> None:
        """Add to the counts of what follows two tokens. Nothing is learned where they do not adapt."""
        if self.prior is not None and len(pair) == 2:
            for token, weight in followers.items():
                self.seen[pair][token] += weight  # type: ignore[assignment]

    def followers(self, pair: Ngram) -> list[tuple[int, float]]:
        """The likeliest tokens after two tokens, and their probabilities."""
        if len(pair) < 2:
            return []
        stored = self._stored(pair)
        seen = self.seen.get(pair)
        if self.prior is None or not seen:
            return stored
        shares, count = dict(stored), sum(seen.values())
        prior = self.prior if stored else 0.0
        mixed = {
            token: (prior * shares.get(token, 0.0) + seen[token]) / (prior + count)
            for token in dict.fromkeys([*shares, *seen])
        }
        return sorted(mixed.items(), key=lambda item: -item[1])[:FOLLOWERS]

    def _find(self, pair: Ngram) -> list[tuple[int, float]]:
        """The most frequent tokens after two tokens in the datastore, and their shares."""
        rows = self.store.continuations(pair, 2, self.hits, 1)
        tokens, counts = np.unique(rows[rows != END], return_counts=True)
        order = np.argsort(-counts, kind="stable")[:FOLLOWERS]
        return list(zip(tokens[order].tolist(), (counts[order] / max(1, len(rows))).tolist(), strict=True))

    def likeliest(self, pair: Ngram, gamma: int, known: set[Ngram], count: int) -> list[Ngram]:
        """At most `count` texts of up to γ tokens that are not in `known`, likeliest first.

        A text comes after its own prefixes. Its probability is the product of its tokens' probabilities, each after the
        two tokens before it.
        """
        texts: list[Ngram] = []
        heap: list[tuple[float, Ngram]] = [(-1.0, ())]
        while heap and len(texts) < count:
            chance, text = heapq.heappop(heap)
            if text and text not in known:
                texts.append(text)
            if len(text) < gamma:
                for token, share in self.followers((*pair, *text)[-2:]):
                    heapq.heappush(heap, (chance * share, (*text, token)))
        return texts

    def searched(self, pair: Ngram, gamma: int, known: set[Ngram], count: int, iterations: int) -> list[Ngram]:
        """At most `count` texts of up to γ tokens that are not in `known`, in the order in which a search finds them.

        Each iteration goes down from the pair by PUCT until it meets a text that it has not met before, whose
        probability is its value. A text comes after its own prefixes.
        """
        texts: list[Ngram] = []
        nodes: dict[Ngram, Node] = {(): Node(1.0)}
        for _ in range(iterations):
            if len(texts) >= count:
                break
            path, text = [nodes[()]], ()  # type: tuple[list[Node], Ngram]
            while len(text) < gamma:
                at = path[-1]
                if at.children is None:
                    at.children = self.followers((*pair, *text)[-2:])
                if not at.children:
                    break
                text = (*text, at.best(nodes, text))
                new = text not in nodes
                if new:
                    share = dict(at.children)[text[-1]]
                    nodes[text] = Node(at.chance * share)
                path.append(nodes[text])
                if new:
                    if text not in known:
                        texts.append(text)
                    break
            for node in path:
                node.visits += 1
                node.total += path[-1].chance
        return texts


class Node:
    """A text that a search has met."""

    def __init__(self, chance: float) -> None:
        self.chance = chance  # of the text, by tri-grams
        self.visits, self.total = 0, 0.0  # of the iterations that passed, and the sum of their values
        self.children: list[tuple[int, float]] | None = None

    def best(self, nodes: dict[Ngram, "Node"], text: Ngram) -> int:
        """The follower of this text with the highest sum of mean value and PUCT's bonus; of equals the first."""
        assert self.children
        explored = C1 + math.log((self.visits + C2 + 1) / C2)

        def score(child: tuple[int, float]) -> float:
            token, share = child
            met = nodes.get((*text, token))
            visits, value = (met.visits, met.total / met.visits) if met else (0, 0.0)
            return value + share * math.sqrt(max(1, self.visits)) / (1 + visits) * explored

        return max(self.children, key=score)[0]
