"""LogitSpec: the last logits guess the token after the next one, and each guess is looked up in the text. Lossless.

arXiv 2507.01449. The logits that gave the last committed token also rank what may follow it. Each of these candidates,
with the tokens before it, is an n-gram to look up in the text: so a look-up finds places that the last token alone does
not tell from others. All continuations make one tree.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.ngrams import Ngram, trie
from specbench.engine.session import Session
from specbench.engine.speculate import speculate
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Stateless, Verdict, Watch
from specbench.methods.drafting import bounded
from specbench.methods.lookup.pld import Index
from specbench.methods.trees.rsd import refuse_long


class Settings(Base):
    ngram: int = Field(ge=1, description="tokens of the longest n-gram that is looked up, with the candidate")
    shortest: int = Field(ge=1, description="tokens of the shortest; it is looked up where no longer one is found")
    gamma: int = Field(ge=1, description="tokens that are taken of what followed the last token (γ)")
    nodes: int = Field(ge=1, description="the most tokens of a tree")
    ranks: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        description="candidates of rank 1 to the first number, from there to the second, and so on"
    )
    lengths: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        description="tokens of a draft from a candidate on, by these ranks; one more for all later ranks"
    )

    _fits = bounded("shortest", "ngram")

    def length(self, rank: int) -> int:
        """The most tokens of a draft that begins with the candidate of a rank, counted from 1."""
        return self.lengths[sum(rank > last for last in self.ranks)]


class LogitDrafter:
    """Drafts what followed the end of the text, then each candidate and what followed it, until a tree is full.

    `accept` and `prefill` are methods here, since they see the logits that the next draft needs.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.lengths = Lengths()

    def begin(self, prompt: list[int]) -> None:
        self.index = Index(self.settings.ngram, self.settings.shortest, ahead=1, latest=True)

    def prefill(self, target: Session, prompt: list[int]) -> Scored:
        scored = target.restart(prompt)
        self.see(scored.logits[-1])
        return scored

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """The exact rule of trees."""
        verdict = exact_tree(draft, scored, sampling, rng)
        self.see(scored.logits[verdict.path[-1] + 1 if verdict.path else 0])
        return verdict

    def see(self, logits: torch.Tensor) -> None:
        """Note the likeliest tokens by logits [V] that gave the last committed token, one of which is that token."""
        self.likeliest = logits.topk(min(self.settings.nodes + 1, logits.shape[-1])).indices

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of point masses at any temperature."""
        settings, index = self.settings, self.index
        index.extend(context[len(index.tokens) :])
        candidates = [token for token in self.likeliest.tolist() if token != context[-1]]
        before = context[max(0, len(context) - settings.ngram + 1) :] if settings.ngram > 1 else []
        texts = [self.following(context[-settings.ngram :], gamma)]
        for rank, token in enumerate(candidates, 1):
            length = settings.length(rank)
            texts.append((token, *self.following([*before, token], length - 1)))
        tokens, parents = trie(prefixes(texts, settings.nodes))
        return Draft(torch.tensor(tokens, dtype=torch.long, device=self.device), None, parents if tokens else None)

    def following(self, text: list[int], count: int) -> Ngram:
        """At most `count` tokens that followed the end of `text` where it occurred last."""
        start = self.index.find(text) if count else None
        return () if start is None else tuple(self.index.tokens[start : start + count])


def prefixes(texts: Iterable[Ngram], most: int) -> list[Ngram]:
    """The first `most` different prefixes of texts, in their order, each after its own prefixes."""
    every = dict.fromkeys(text[:length] for text in texts for length in range(1, len(text) + 1))
    return list(islice(every, most))


class LogitSpec(Stateless):
    """Speculative decoding with trees of look-ups; no draft model."""

    lossless = True

    def __init__(self, target: Session, settings: Settings) -> None:
        self.target, self.settings = target, settings
        self.drafter = LogitDrafter(settings, target.device)
        self.reach = 1 + settings.nodes

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        drafter, gamma = self.drafter, self.settings.gamma
        return speculate(self.target, drafter, drafter.accept, gamma, prompt, sampling, rng, prefill=drafter.prefill)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for settings and rounds that do not fit."""
    if len(settings.lengths) != len(settings.ranks) + 1 or list(settings.ranks) != sorted(set(settings.ranks)):
        raise UserError("logitspec: ranks must increase, and lengths must have one more number; change one of them")
    refuse_long(f"logitspec: its tree has up to {settings.nodes} tokens", settings.nodes, pair)
    return LogitSpec(pair.session("target", watch), settings)
