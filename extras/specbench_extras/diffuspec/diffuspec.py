"""DiffuSpec: a search finds a path through a block's slots that is likely as a text, too (arXiv 2510.02358). Lossless.

The slots of a block do not know of one another's tokens, so their likeliest ones need not make a text. The search
weighs each slot's own distribution against an n-gram model, which reads the path from left to right. The length of a
block follows what was drafted and accepted before.

The paper's drafter is a diffusion model of text, which reads the whole text again each round. Here it is a block head.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.ids import to_device
from specbench.engine.lengths import Lengths
from specbench.engine.models.block_head import BlockHead
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.sampling import wide
from specbench.engine.session import Session
from specbench.engine.types import Draft, Method, Sampling, Verdict, Watch
from specbench.methods.blocks.dflash import KIND, BlockDrafter, DFlash, loaded
from specbench.methods.lookup.rest_datastore import END, Datastore, find_datastore

ORDER = 3  # of the n-gram model (paper)
PRIOR = 2.0  # occurrences of a context that weigh as much as all shorter contexts together (our inference)
REMEMBERED = 2**16  # contexts whose followers are kept

# The probability of a token after those before it.
Chance = Callable[[Sequence[int], int], float]


class Settings(Base):
    longest: int = Field(ge=0, description="the most tokens of a draft (k_max); 0: as many as a block of the head has")
    shortest: int = Field(ge=1, description="the fewest tokens of a draft (k_min)")
    growth: int = Field(ge=0, description="tokens that are added while all drafted tokens are accepted (δ)")
    smoothing: float = Field(gt=0, le=1, description="weight of the last round in the mean lengths (ρ)")
    mass: float = Field(gt=0, le=1, description="probability that a slot's candidates have together at least (τ)")
    candidates: int = Field(ge=1, description="the most candidates of a slot (M_max)")
    beam: int = Field(ge=1, description="paths that the search keeps (b)")
    weight: float = Field(ge=0, le=1, description="of the slots' distributions; the n-gram model has the rest (λ)")
    hits: int = Field(ge=1, description="places of a context that are read in each shard of the datastore")
    datastore: str = Field(min_length=1, description="what the n-gram model counts: as in rest")
    head: str = Field(description="trained head of dflash: a file, or `auto` (the one that ships with the pair)")


class Ngrams:
    """Tri-grams of a datastore, smoothed: each context counts with shorter ones as its prior."""

    def __init__(self, store: Datastore, hits: int, vocabulary: int) -> None:
        self.store, self.hits, self.vocabulary = store, hits, vocabulary
        self._followers = lru_cache(REMEMBERED)(self._find)

    def __call__(self, context: Sequence[int], token: int) -> float:
        """The probability of a token after a context, of which the last two tokens are read."""
        chance = 1 / self.vocabulary
        for length in range(1, min(ORDER, len(context) + 1)):
            counts, total = self._followers(tuple(context[-length:]))
            chance = (counts.get(token, 0) + PRIOR * chance) / (total + PRIOR)
        return chance

    def _find(self, context: tuple[int, ...]) -> tuple[dict[int, int], int]:
        """How often each token follows a context, and all together, at the places that are read."""
        rows = self.store.continuations(context, len(context), self.hits, 1)
        tokens, counts = np.unique(rows[rows != END], return_counts=True)
        return dict(zip(tokens.tolist(), counts.tolist(), strict=True)), int(counts.sum())


def lattice_of(logits: Tensor, mass: float, most: int, eos_ids: frozenset[int]) -> tuple[list[dict[int, float]], int]:
    """The candidates of each slot, by logits [k, V], with their log-probabilities, and how many slots precede an end.

    A slot's candidates are its likeliest tokens, the fewest with `mass` together, at most `most`; and every token that
    ends a text. The slots end with the first one whose likeliest token does.
    """
    logs = wide(logits).log_softmax(-1)
    best = logs.topk(min(most, logs.shape[-1]))
    chances = best.values.exp()
    kept = (chances.cumsum(-1) - chances < mass).tolist()
    ends = sorted(eos_ids)
    slots = []
    for row, tokens, values, of_ends in zip(
        kept, best.indices.tolist(), best.values.tolist(), logs[:, ends].tolist(), strict=True
    ):
        slot = {token: value for token, value, is_kept in zip(tokens, values, row, strict=True) if is_kept}
        slots.append({**dict(zip(ends, of_ends, strict=True)), **slot})
        if tokens[0] in eos_ids:
            return slots, len(slots) - 1
    return slots, len(slots)


def consistent_path(
    slots: Sequence[dict[int, float]], context: Sequence[int], chance: Chance, beam: int, weight: float
) -> list[int]:
    """The best path that a beam search finds, a token of each slot.

    The score of a path is the sum, over its tokens, of λ log q(x), by the slot, and (1 - λ) log p(x), by `chance` after
    the context and the path before it.
    """
    paths: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for slot in slots:
        grown = []
        for score, path in paths:
            before = (*context[-ORDER:], *path)
            for token, log in slot.items():
                of_text = math.log(chance(before, token)) if weight < 1 else 0.0
                grown.append((score + weight * log + (1 - weight) * of_text, (*path, token)))
        paths = heapq.nlargest(beam, grown, key=lambda item: item[0])
    return list(paths[0][1])


class Adaptive(Lengths):
    """The length of the next draft, by the mean lengths of what was drafted before its end and of what was accepted.

    Both are means that decay: the last round weighs ρ. A draft is as long as the mean drafted length, and `growth`
    tokens longer while the mean accepted length is no shorter.
    """

    def __init__(self, shortest: int, longest: int, growth: int, smoothing: float) -> None:
        self.shortest, self.longest, self.growth, self.smoothing = shortest, longest, growth, smoothing
        self.begin([])

    def begin(self, prompt: list[int]) -> None:
        self.next, self.drafted = self.longest, 0
        self.means: tuple[float, float] | None = None  # of the drafted and the accepted lengths

    def most(self, gamma: int, context: int) -> int:
        return self.next

    def observe(self, verdict: Verdict) -> None:
        last = float(self.drafted), float(verdict.accepted)
        old, share = self.means or last, self.smoothing
        self.means = (1 - share) * old[0] + share * last[0], (1 - share) * old[1] + share * last[1]
        wanted = math.floor(self.means[0]) + (self.growth if self.means[1] >= self.means[0] else 0)
        self.next = min(max(wanted, self.shortest), self.longest)


class PathDrafter(BlockDrafter):
    """Drafts a path through the lattice of a block whose length is that of the policy."""

    lengths: Adaptive

    def __init__(
        self, head: BlockHead, session: Session, settings: Settings, longest: int, ends: frozenset[int], ngrams: Chance
    ) -> None:
        super().__init__(head, session, longest + 1, "likeliest")
        self.settings, self.ends, self.ngrams = settings, ends, ngrams
        self.lengths = Adaptive(settings.shortest, longest, settings.growth, settings.smoothing)

    def begin(self, prompt: list[int]) -> None:
        super().begin(prompt)
        self.lengths.begin(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A point mass at any temperature: the lattice determines the path. It ends with the first end of a text."""
        own = self.settings
        self.block = self.lengths.most(gamma, len(context)) + 1
        slots, self.lengths.drafted = lattice_of(self.lattice(context), own.mass, own.candidates, self.ends)
        path = consistent_path(slots, context, self.ngrams, own.beam, own.weight)
        end = next((place for place, token in enumerate(path) if token in self.ends), len(path))
        return Draft(to_device(path[: end + 1], self.session.device), None)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for a head or a datastore that does not fit it."""
    model, hashes = loaded(settings.head, pair, KIND)
    longest = settings.longest or model.block - 1
    if not settings.shortest <= longest < model.block:
        raise UserError(
            f"diffuspec: lengths from {settings.shortest} to {longest} do not fit the head, which drafts "
            f"{model.block - 1} tokens; change shortest or longest"
        )
    store = find_datastore(settings.datastore, pair.tokenizer_hash)
    session = Session(model, "draft", watch, pair.vocabulary, EAGER)
    ngrams = Ngrams(store, settings.hits, pair.vocabulary)
    drafter = PathDrafter(model, session, settings, longest, pair.eos_ids, ngrams)
    hashes = {**hashes, "datastore": store.about.contents}
    return DFlash(pair.session("target", watch), drafter, hashes)
