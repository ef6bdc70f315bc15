"""REST: drafts are retrieved from a datastore by the last tokens of the text (arXiv 2311.08252). Lossless."""

import heapq
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.drafters import Drafter, ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.ngrams import Ngram, trie
from specbench.engine.session import Session
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Sampling, Watch
from specbench.methods.drafting import DraftedMethod, bounded
from specbench.methods.rest_datastore import DEPTH, END, Datastore, Tokens, find_datastore

FOLLOWERS = 10  # tri-grams: how many of the most frequent tokens after two others are tried
REMEMBERED = 2**16  # pairs of tokens whose followers are kept
GREEDY = Sampling()


class Settings(Base):
    datastore: str = Field(min_length=1, description="a folder of build-datastore, or auto: what ships for the pair")
    longest: int = Field(ge=1, le=DEPTH, description="tokens of the longest suffix that is looked up")
    shortest: int = Field(ge=1, description="tokens of the shortest one")
    hits: int = Field(ge=1, description="places that are read in each shard of the datastore")
    gamma: int = Field(ge=1, description="tokens of a continuation: levels of the draft (γ)")
    nodes: int = Field(ge=1, description="the most retrieved tokens of a draft")
    ngram: Literal[0, 3] = Field(description="3: what is left of nodes goes to tri-grams of the datastore; 0: off")
    fusion: Literal["none", "draft"] = Field(description="draft: the draft model's chain is merged into the tree")
    fusion_gamma: int = Field(ge=1, description="tokens of that chain")

    _fits = bounded("shortest", "longest")

    def reach(self) -> int:
        """The most tokens of a round, including the last committed one."""
        return 1 + self.nodes + (min(self.gamma, self.fusion_gamma) if self.fusion == "draft" else 0)


class Retrieval:
    """Drafts a trie: the most frequent continuations of the longest suffix of the context that the store holds.

    Suffixes have `shortest` to `longest` tokens, and the trie has at most `nodes`; if nothing is found, the draft is
    empty. With `trigrams`, the rest of `nodes` goes to the likeliest texts by the store's tri-grams, best first (after
    ADED, whose statistics also learn while decoding; these do not). With a `model`, the chain of up to `fusion` tokens
    that it drafts greedily is merged in by its longest common prefix with the trie (RASD's tree fusion, without its
    pruning of the retrieved tree).
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
        self._followers = lru_cache(REMEMBERED)(self._find_followers)

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
        """The most frequent continuations, and their prefixes, of the longest suffix that has any."""
        length = self.store.longest(context, self.longest, self.shortest)
        while length >= self.shortest:
            prefixes = frequent(self.store.continuations(context, length, self.hits, gamma), self.nodes)
            if prefixes:
                return prefixes
            length -= 1  # this suffix occurs only at the very end of documents
        return []

    def likeliest(self, pair: Sequence[int], gamma: int, known: set[Ngram], count: int) -> list[Ngram]:
        """At most `count` texts of up to γ tokens that are not in `known`, likeliest first.

        A text comes after its own prefixes. Its probability is the product, over its tokens, of the token's share among
        all that followed the two tokens before it.
        """
        texts: list[Ngram] = []
        heap: list[tuple[float, Ngram]] = [(-1.0, ())]
        while heap and len(texts) < count:
            chance, text = heapq.heappop(heap)
            if text and text not in known:
                texts.append(text)
            if len(text) < gamma:
                for token, share in self._followers((*pair, *text)[-2:]):
                    heapq.heappush(heap, (chance * share, (*text, token)))
        return texts

    def _find_followers(self, pair: Ngram) -> list[tuple[int, float]]:
        """The most frequent tokens after two tokens, and their shares."""
        if len(pair) < 2:
            return []
        rows = self.store.continuations(pair, 2, self.hits, 1)
        tokens, counts = np.unique(rows[rows != END], return_counts=True)
        order = np.argsort(-counts, kind="stable")[:FOLLOWERS]
        return list(zip(tokens[order].tolist(), (counts[order] / max(1, len(rows))).tolist(), strict=True))


def frequent(rows: Tokens, nodes: int) -> list[Ngram]:
    """The at most `nodes` most frequent prefixes of rows [n, γ], each after its own prefixes.

    A prefix ends before END. Of equally frequent ones the shorter goes first, then the one with the smaller ids.
    """
    count, width = rows.shape
    if not count:
        return []
    # Sorted as bytes, which compare as big-endian ids do. The rows of one shard are sorted already, mostly.
    rows = rows[np.argsort(rows.astype(">u4").view(f"S{4 * width}")[:, 0], kind="stable")]
    places = np.arange(count)  # of the rows that may still matter
    begins = np.zeros(count, bool)  # True: the row begins with another prefix than the row before it
    begins[0] = True
    times, chosen = np.empty(0, np.int64), np.empty(0, np.int64)  # of the best so far; a prefix as place * γ + level
    for level in range(width):
        column = rows[places, level]
        begins[1:] |= column[1:] != column[:-1]
        first = np.flatnonzero(begins)
        often = np.diff(first, append=len(places))
        real = column[first] != END
        times = np.concatenate([times, often[real]])
        chosen = np.concatenate([chosen, places[first[real]] * width + level])
        best = np.argsort(-times, kind="stable")[:nodes]
        times, chosen = times[best], chosen[best]
        # A longer prefix is no more frequent, and goes after shorter ones that are as frequent.
        least = times[-1] if len(times) == nodes else 0
        alive = np.repeat(real & (often > least), often)
        if not alive.any():
            break
        places, begins = places[alive], begins[alive]
    return [tuple(rows[at // width, : at % width + 1].tolist()) for at in chosen.tolist()]


class Rest(DraftedMethod):
    """Retrieve a tree and verify it by one target forward, with one draw from the target for each node.

    (Where branches share a prefix, the official code draws anew for each branch, which is not lossless.)
    """

    lossless = True
    accept = staticmethod(exact_tree)

    def __init__(self, target: Session, drafter: Retrieval, settings: Settings, contents: str) -> None:
        self.target, self.drafter, self.settings, self.contents = target, drafter, settings, contents
        self.gamma, self.reach = settings.gamma, settings.reach()

    def inputs(self) -> dict[str, str]:
        return {**super().inputs(), "datastore": self.contents}


def drafter(settings: Settings, tokenizer: str | None, device: torch.device) -> Retrieval:
    """The drafter alone, without models. `tokenizer` is the hash that the datastore must have; None: not checked."""
    if settings.fusion != "none":
        raise UserError("fusion=draft needs the draft model, and none is loaded here; --set METHOD.fusion=none")
    return _retrieval(settings, find_datastore(settings.datastore, tokenizer), device)


def _retrieval(
    settings: Settings, store: Datastore, device: torch.device, model: ModelDrafter | None = None
) -> Retrieval:
    return Retrieval(
        store,
        settings.longest,
        settings.shortest,
        settings.hits,
        settings.nodes,
        device,
        trigrams=settings.ngram == 3,
        model=model,
        fusion=settings.fusion_gamma,
    )


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses the pair's target, and its draft only for fusion. Raises UserError for a datastore that does not fit."""
    store = find_datastore(settings.datastore, pair.tokenizer_hash)
    if store.about.largest >= pair.vocabulary:
        raise UserError(
            f"the datastore {store.folder} holds the token {store.about.largest}, which {pair.name} has no logits for "
            f"({pair.vocabulary} tokens); build one with the pair's own tokenizer"
        )
    if settings.reach() >= pair.context:
        raise UserError(
            f"rest: nodes {settings.nodes} makes rounds of up to {settings.reach()} tokens, but {pair.name} reads "
            f"{pair.context}; choose fewer"
        )
    model = ModelDrafter(pair.session("draft", watch)) if settings.fusion == "draft" else None
    retrieval = _retrieval(settings, store, pair.device, model)
    return Rest(pair.session("target", watch), retrieval, settings, store.about.contents)
