"""Drafts that are looked up: how texts in a datastore go on behind the last tokens (REST, arXiv 2311.08252)."""

import heapq
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from specbench.datastore import END, Datastore, Tokens
from specbench.decoding.drafters import Drafter
from specbench.decoding.lengths import Lengths
from specbench.decoding.ngrams import Ngram, trie
from specbench.decoding.types import Draft, Sampling

FOLLOWING = 10  # of the tokens that followed two others, the most frequent ones that are tried
REMEMBERED = 2**16  # pairs of tokens whose followers are kept
GREEDY = Sampling()


class Retrieval:
    """The trie of the most frequent continuations of the longest suffix of the context that the store holds.

    It has at most `nodes` tokens, of suffixes of `shortest` to `longest` tokens; nothing is found: an empty draft.
    With `trigrams`, what is left of `nodes` goes to the likeliest texts by the tokens that followed each two tokens in
    the store, best first (after the tri-gram drafts of ADED, whose statistics also learn while decoding; these do not).
    With a `model`, the chain of up to `fusion` tokens that it drafts greedily is merged in by its longest common
    prefix with the trie (RASD's tree fusion; its pruning of the retrieved tree is not here).
    """

    def __init__(
        self,
        store: Datastore,
        longest: int,
        shortest: int,
        hits: int,
        nodes: int,
        device: torch.device,
        trigrams: bool = False,
        model: Drafter | None = None,
        fusion: int = 0,
    ) -> None:
        self.store, self.longest, self.shortest, self.hits, self.nodes = store, longest, shortest, hits, nodes
        self.device, self.trigrams, self.model, self.fusion = device, trigrams, model, fusion
        self.lengths = Lengths()
        self._following = lru_cache(REMEMBERED)(self._look_up)

    def begin(self, prompt: list[int]) -> None:
        if self.model:
            self.model.begin(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of at most γ levels, point masses at any temperature."""
        # A GPU drafts while the store is searched.
        chain = self.model.propose(context, min(gamma, self.fusion), GREEDY, rng).tokens if self.model else None
        prefixes = self.retrieve(context[-self.longest :], gamma)
        if self.trigrams:
            prefixes += self.likeliest(context[-2:], gamma, set(prefixes), self.nodes - len(prefixes))
        tokens, parents = trie([*prefixes, *([] if chain is None else [tuple(chain.tolist())])])
        drafted = torch.tensor(tokens, dtype=torch.long, device=self.device)
        return Draft(drafted, None, parents if tokens else None)

    def retrieve(self, context: Sequence[int], gamma: int) -> list[Ngram]:
        """The most frequent prefixes of what followed the longest suffix that anything followed."""
        length = self.store.longest(context, self.longest, self.shortest)
        while length >= self.shortest:
            found = frequent(self.store.continuations(context, length, self.hits, gamma), self.nodes)
            if found:
                return found
            length -= 1  # it stood at the very end of documents only
        return []

    def likeliest(self, pair: Sequence[int], gamma: int, known: set[Ngram], count: int) -> list[Ngram]:
        """At most `count` texts of up to γ tokens that are not known, each behind its own beginning, likeliest first.

        A text's chance is the product of the shares that its tokens had among those that followed the two before them.
        """
        found: list[Ngram] = []
        heap: list[tuple[float, Ngram]] = [(-1.0, ())]
        while heap and len(found) < count:
            chance, text = heapq.heappop(heap)
            if text and text not in known:
                found.append(text)
            if len(text) < gamma:
                for token, share in self._following((*pair, *text)[-2:]):
                    heapq.heappush(heap, (chance * share, (*text, token)))
        return found

    def _look_up(self, pair: Ngram) -> list[tuple[int, float]]:
        """The most frequent tokens behind two tokens, and their shares."""
        if len(pair) < 2:
            return []
        rows = self.store.continuations(pair, 2, self.hits, 1)
        tokens, counts = np.unique(rows[rows != END], return_counts=True)
        order = np.argsort(-counts, kind="stable")[:FOLLOWING]
        return list(zip(tokens[order].tolist(), (counts[order] / max(1, len(rows))).tolist(), strict=True))


def frequent(rows: Tokens, nodes: int) -> list[Ngram]:
    """At most so many of the prefixes of rows [n, γ], the most frequent first, each behind its own beginning.

    A prefix ends before END. Of equally frequent ones the shorter goes first, then the one with the smaller ids.
    """
    count, width = rows.shape
    if not count:
        return []
    # Sorted as bytes, which compare as big-endian ids do; what comes from a shard is sorted already, mostly.
    rows = rows[np.argsort(rows.astype(">u4").view(f"S{4 * width}")[:, 0], kind="stable")]
    places = np.arange(count)  # of the rows that may still matter
    begins = np.zeros(count, bool)  # whether such a row begins with another prefix than the one before it
    begins[0] = True
    times, chosen = np.empty(0, np.int64), np.empty(0, np.int64)  # of the best so far; a prefix as place * γ + level
    for level in range(width):
        column = rows[places, level]
        begins[1:] |= column[1:] != column[:-1]
        first = np.flatnonzero(begins)
        often = np.diff(first, append=len(places))
        there = column[first] != END
        times = np.concatenate([times, often[there]])
        chosen = np.concatenate([chosen, places[first[there]] * width + level])
        best = np.argsort(-times, kind="stable")[:nodes]
        times, chosen = times[best], chosen[best]
        # What begins with a prefix is no more frequent, and goes behind those that are as frequent and shorter.
        least = times[-1] if len(times) == nodes else 0
        alive = np.repeat(there & (often > least), often)
        if not alive.any():
            break
        places, begins = places[alive], begins[alive]
    return [tuple(rows[at // width, : at % width + 1].tolist()) for at in chosen.tolist()]
