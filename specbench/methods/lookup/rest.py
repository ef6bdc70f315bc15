"""REST: drafts are retrieved from a datastore by the last tokens of the text (arXiv 2311.08252). Lossless."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.drafters import Drafter, ModelDrafter
from specbench.engine.lengths import DraftToken, Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.ngrams import Ngram, trie
from specbench.engine.sampling import wide
from specbench.engine.session import Session
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Sampling, Scored, Verdict, Watch
from specbench.methods.drafting import DraftedMethod, bounded
from specbench.methods.lookup.rest_datastore import DEPTH, END, Datastore, Tokens, find_datastore
from specbench.methods.lookup.rest_trigrams import FOLLOWERS, Trigrams

GREEDY = Sampling()


class Settings(Base):
    datastore: str = Field(min_length=1, description="a folder of build-datastore, or auto: what ships for the pair")
    longest: int = Field(ge=1, le=DEPTH, description="tokens of the longest suffix that is looked up")
    shortest: int = Field(ge=1, description="tokens of the shortest one")
    hits: int = Field(ge=1, description="places that are read in each shard of the datastore")
    gamma: int = Field(ge=1, description="tokens of a continuation: levels of the draft (γ)")
    nodes: int = Field(ge=1, description="the most retrieved tokens of a draft")
    cut: bool = Field(
        default=False,
        description="a prefix costs its distinct tokens, though others begin with it; the costliest leave until the "
        "costs of all are at most nodes",
    )
    ngram: Literal[0, 3] = Field(description="3: what is left of nodes goes to tri-grams of the datastore; 0: off")
    prior: float = Field(
        default=0,
        ge=0,
        allow_inf_nan=False,
        description="ngram: tokens seen after two others that weigh as much as the datastore does; 0: it alone counts",
    )
    search: Literal["best", "puct"] = Field(
        default="best", description="ngram: the likeliest texts, or those that a search by PUCT meets first"
    )
    iterations: int = Field(default=150, ge=1, description="ngram: the most iterations of that search")
    fusion: Literal["none", "draft"] = Field(description="draft: the draft model's chain is merged into the tree")
    fusion_gamma: int = Field(ge=1, description="tokens of that chain")
    prune: int = Field(
        default=0,
        ge=0,
        description="fusion: what is retrieved begins with one of so many likeliest tokens of the draft model; 0: off",
    )

    _fits = bounded("shortest", "longest")

    def reach(self) -> int:
        """The most tokens of a round, including the last committed one."""
        return 1 + self.nodes + (min(self.gamma, self.fusion_gamma) if self.fusion == "draft" else 0)


class FirstPlace(Lengths):
    """Always γ tokens; notes the likeliest tokens of each draft's first place."""

    looks = True

    def __init__(self, count: int) -> None:
        self.count = count

    def enough(self, step: int, token: DraftToken) -> bool:
        if step == 1:
            self.likeliest = token.logits[0].topk(min(self.count, token.logits.shape[-1])).indices
        return False


class Retrieval(Drafter):
    """Drafts a trie: the most frequent continuations of the longest suffix of the context that the store holds.

    Suffixes have `shortest` to `longest` tokens, and the trie has at most `nodes`, mostly fewer with `cut`; if nothing
    is found, the draft is empty. With `trigrams`, the rest of `nodes` goes to texts by tri-grams (after ADED): the
    likeliest, or those that a search of so many `iterations` meets. With a `model`, the chain of up to `fusion` tokens
    that it drafts greedily is merged in by its longest common prefix with the trie (RASD). With `first`, the model's
    length policy, branches that begin with another token than its likeliest are pruned before.
    """

    def __init__(
        self,
        store: Datastore,
        longest: int,
        shortest: int,
        hits: int,
        nodes: int,
        cut: bool,
        device: torch.device,
        trigrams: Trigrams | None = None,
        iterations: int = 0,
        model: Drafter | None = None,
        fusion: int = 0,
        first: "FirstPlace | None" = None,
    ) -> None:
        self.store, self.longest, self.shortest, self.hits, self.nodes = store, longest, shortest, hits, nodes
        self.cut, self.device, self.trigrams, self.iterations = cut, device, trigrams, iterations
        self.model, self.fusion, self.first = model, fusion, first
        self.read = 0  # tokens of the text that the tri-grams have counted

    def begin(self, prompt: list[int]) -> None:
        self.read = 0
        if self.trigrams:
            self.trigrams.begin()
        if self.model:
            self.model.begin(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of at most γ levels, point masses at any temperature."""
        # A GPU drafts while the store is searched.
        chain = self.model.propose(context, min(gamma, self.fusion), GREEDY, rng).tokens if self.model else None
        prefixes = self.retrieve(context[-self.longest :], gamma)
        if self.trigrams:
            prefixes += self.fill(self.trigrams, context, gamma, set(prefixes), self.nodes - len(prefixes))
        if self.first:
            allowed = set(self.first.likeliest.tolist())
            prefixes = [prefix for prefix in prefixes if prefix[0] in allowed]
        tokens, parents = trie([*prefixes, *([] if chain is None else [tuple(chain.tolist())])])
        drafted = torch.tensor(tokens, dtype=torch.long, device=self.device)
        return Draft(drafted, None, parents if tokens else None)

    def fill(self, trigrams: Trigrams, context: list[int], gamma: int, known: set[Ngram], count: int) -> list[Ngram]:
        """At most `count` texts by tri-grams that are not in `known`; the text's own are counted first."""
        trigrams.read(context[self.read :])
        self.read, self.pair = len(context), tuple(context[-2:])
        if self.iterations:
            return trigrams.searched(self.pair, gamma, known, count, self.iterations)
        return trigrams.likeliest(self.pair, gamma, known, count)

    def observe(self, scored: Scored, verdict: Verdict) -> None:
        """Let the tri-grams learn the target's likeliest tokens at verified places."""
        if not self.trigrams or self.trigrams.prior is None:
            return
        rows = scored.logits[[0, *(node + 1 for node in verdict.path)]]
        best = wide(rows).softmax(-1).topk(min(FOLLOWERS, rows.shape[-1]))
        text = [*self.pair, *(verdict.drafted[node] for node in verdict.path)]
        for place, (tokens, chances) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True)):
            self.trigrams.learn(tuple(text[place : place + 2]), dict(zip(tokens, chances, strict=True)))

    def retrieve(self, context: Sequence[int], gamma: int) -> list[Ngram]:
        """The most frequent continuations, and their prefixes, of the longest suffix that has any."""
        length = self.store.longest(context, self.longest, self.shortest)
        while length >= self.shortest:
            prefixes = frequent(self.store.continuations(context, length, self.hits, gamma), self.nodes)
            if prefixes:
                return affordable(prefixes, self.nodes) if self.cut else prefixes
            length -= 1  # this suffix occurs only at the very end of documents
        return []


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


def affordable(prefixes: list[Ngram], budget: int) -> list[Ngram]:
    """The prefixes whose distinct tokens are at most `budget` in sum, and their own prefixes.

    The costliest leave first, of equally costly ones the last. A long chain costs much, as all of its prefixes do.
    """
    costs = [len(set(prefix)) for prefix in prefixes]
    total, left = sum(costs), dict(enumerate(prefixes))
    for place in sorted(reversed(range(len(prefixes))), key=lambda place: -costs[place]):
        if total <= budget:
            break
        total -= costs[place]
        del left[place]
    needed = {prefix[:length] for prefix in left.values() for length in range(1, len(prefix) + 1)}
    return [prefix for prefix in prefixes if prefix in needed]


class Rest(DraftedMethod):
    """Retrieve a tree and verify it by one target forward, with one draw from the target for each node.

    (Where branches share a prefix, the official code draws again for each branch, which is not lossless.)
    """

    lossless = True
    accept = staticmethod(exact_tree)

    def __init__(self, target: Session, drafter: Retrieval, settings: Settings, contents: str) -> None:
        self.target, self.drafter, self.settings, self.hashes = target, drafter, settings, {"datastore": contents}
        self.gamma, self.reach = settings.gamma, settings.reach()


def drafter(settings: Settings, tokenizer: str | None, device: torch.device) -> Retrieval:
    """The drafter alone, without models. `tokenizer` is the hash that the datastore must have; None: not checked."""
    if settings.fusion != "none":
        raise UserError("fusion=draft needs the draft model, and none is loaded here; --set METHOD.fusion=none")
    return _retrieval(settings, find_datastore(settings.datastore, tokenizer), device)


def _retrieval(
    settings: Settings,
    store: Datastore,
    device: torch.device,
    model: Drafter | None = None,
    first: FirstPlace | None = None,
) -> Retrieval:
    return Retrieval(
        store,
        settings.longest,
        settings.shortest,
        settings.hits,
        settings.nodes,
        settings.cut,
        device,
        trigrams=Trigrams(store, settings.hits, settings.prior or None) if settings.ngram == 3 else None,
        iterations=settings.iterations if settings.search == "puct" else 0,
        model=model,
        fusion=settings.fusion_gamma,
        first=first,
    )


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses the pair's target, and its draft only for fusion. Raises UserError for a datastore that does not fit."""
    store = find_datastore(settings.datastore, pair.tokenizer_hash)
    if store.about.largest >= pair.vocabulary:
        raise UserError(
            f"the datastore {store.folder} holds the token {store.about.largest}, which {pair.name} has no logits for "
            f"({pair.vocabulary} tokens); build one with the pair's own tokenizer"
        )
    model = first = None
    if settings.fusion == "draft":
        first = FirstPlace(settings.prune) if settings.prune else None
        model = ModelDrafter(pair.session("draft", watch), first)
    retrieval = _retrieval(settings, store, pair.device, model, first)
    return Rest(pair.session("target", watch), retrieval, settings, store.about.contents)
