"""LogitSpec: the last logits guess the token after the next one, and each guess is looked up in the text. Lossless.

arXiv 2507.01449. The logits that gave the last committed token also rank what may follow it. Each of these candidates,
with the tokens before it, is an n-gram to look up in the text: so a look-up finds places that the last token alone does
not tell from others. All continuations make one tree.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Annotated

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.drafters import Drafter
from specbench.engine.models.pair import Pair
from specbench.engine.ngrams import Ngram, trie
from specbench.engine.session import Session
from specbench.engine.speculate import Speculative
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Sampling, Scored, Stateless, Verdict, Watch
from specbench.methods.drafting import bounded


class Settings(Base):
    ngram: int = Field(ge=1, description="tokens of the longest n-gram that is looked up, with the candidate")
    shortest: int = Field(ge=1, description="tokens of the shortest; it is looked up where no longer one is found")
    gamma: int = Field(ge=1, description="tokens that are noted of what followed an n-gram (γ)")
    nodes: int = Field(ge=2, description="the most tokens of a tree, with the last committed one")
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


class Pool:
    """What followed each n-gram of a text where it occurred last, unless less is known there than elsewhere.

    As `Pool` of the official code: after the prompt, only the n-grams that begin in the last 2γ tokens are noted again.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tokens: list[int] = []
        self.after: dict[Ngram, Ngram] = {}

    def extend(self, tokens: list[int]) -> None:
        gamma, began = self.settings.gamma, bool(self.tokens)
        self.tokens += tokens
        for start in range(max(0, len(self.tokens) - 2 * gamma) if began else 0, len(self.tokens)):
            for end in range(start + 1, min(start + self.settings.ngram + 1, len(self.tokens))):
                key, following = tuple(self.tokens[start:end]), tuple(self.tokens[end : end + gamma])
                if len(following) >= len(self.after.get(key, ())):
                    self.after[key] = following

    def following(self, text: list[int]) -> Ngram:
        """What followed the longest known n-gram at the end of a text; empty if none is known."""
        for length in range(min(self.settings.ngram, len(text)), self.settings.shortest - 1, -1):
            if found := self.after.get(tuple(text[-length:])):
                return found
        return ()


class LogitDrafter(Drafter):
    """Drafts what followed the end of the text, then each candidate and what followed it, until a tree is full."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device

    def begin(self, prompt: list[int]) -> None:
        self.pool = Pool(self.settings)

    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        self.see(scored.logits[-1])

    def observe(self, scored: Scored, verdict: Verdict) -> None:
        self.see(scored.logits[verdict.path[-1] + 1 if verdict.path else 0])

    def see(self, logits: torch.Tensor) -> None:
        """Note the likeliest tokens by logits [V] that gave the last committed token, one of which is that token."""
        self.likeliest = logits.topk(min(self.settings.nodes, logits.shape[-1])).indices

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of point masses at any temperature."""
        settings, pool = self.settings, self.pool
        pool.extend(context[len(pool.tokens) : -1])  # the last token has no state yet
        end = context[-settings.ngram :]
        texts = [pool.following(end)]
        for rank, token in enumerate((token for token in self.likeliest.tolist() if token != context[-1]), 1):
            texts.append((token, *pool.following([*end, token]))[: settings.length(rank)])
        tokens, parents = trie(prefixes(texts, settings.nodes - 1))
        return Draft(torch.tensor(tokens, dtype=torch.long, device=self.device), None, parents if tokens else None)


def prefixes(texts: Iterable[Ngram], most: int) -> list[Ngram]:
    """The different prefixes of the first texts that have `most` tokens together; of the last one, as many as fit.

    Tokens that texts share are counted for each of them: the official code drafts them several times.
    """
    every = ((*text[: place + 1],) for text in texts for place in range(len(text)))
    return list(dict.fromkeys(islice(every, most)))


class LogitSpec(Speculative, Stateless):
    """Speculative decoding with trees of look-ups; no draft model."""

    lossless = True
    accept = staticmethod(exact_tree)

    def __init__(self, target: Session, settings: Settings) -> None:
        self.target, self.settings = target, settings
        self.drafter = LogitDrafter(settings, target.device)
        self.gamma, self.reach = settings.gamma, settings.nodes


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for settings and rounds that do not fit."""
    if len(settings.lengths) != len(settings.ranks) + 1 or list(settings.ranks) != sorted(set(settings.ranks)):
        raise UserError("logitspec: ranks must increase, and lengths must have one more number; change one of them")
    return LogitSpec(pair.session("target", watch), settings)
