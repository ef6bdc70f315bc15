"""RAPID: a draft that reads a shortened prompt, and a target that it teaches while both decode. Lossy.

Chen et al., Long-Context Inference with Retrieval-Augmented Speculative Decoding (arXiv 2502.20330). Of a long prompt
the draft reads the parts that fit the question at its end; so it may be as large as the target. Its distribution q
moves the target's p to p̂, and drafts are tested against p̂.

What is emitted follows m + (1 - Σm) norm((p - m)₊) with m = min(q, p̂). That is p if the weight η is 0, and in general
no other way, although the paper has a proof: what q proposes too often beyond p is kept as far as p̂ allows.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Settings as Base
from specbench.engine.accept import beside_target, exact, exact_test, proposals
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import pick, probabilities, residual, wide
from specbench.engine.session import Session
from specbench.engine.speculate import speculate
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Stateless, Verdict, Watch
from specbench_extras.rapid.cascade import ScoringDrafter

RAW = Sampling(1.0)
SATURATION, LENGTH = 1.2, 0.75  # k1 and b of BM25


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")
    eta: float = Field(ge=0, allow_inf_nan=False, description="how far the draft moves the target (η); 0: lossless")
    tail: float = Field(ge=0, le=1, description="tokens with q below this share of max q keep the target's logits")
    drafter: Literal["target", "draft"] = Field(description="who drafts: the target itself, or the pair's draft model")
    chunk: int = Field(ge=1, description="tokens of a part of the prompt that is kept or left out as one")
    kept: int = Field(ge=0, description="the most tokens of parts that the draft reads")
    share: float = Field(ge=0, le=1, description="or this share of the prompt's tokens, if that is more")
    question: int = Field(ge=1, description="tokens at the end of the prompt that are kept, and that parts should fit")
    head: int = Field(ge=0, description="tokens at its beginning that are kept")


@dataclass(frozen=True)
class Shortened:
    """Chooses what a draft reads of a prompt: its beginning, its question, and the parts between that fit it best.

    Parts are ranked by BM25 (Robertson et al. 1994) over token ids, with the question's different tokens as terms; the
    paper ranks by embeddings (BGE-M3) and leaves out what is too unlike.
    """

    settings: Settings

    def __call__(self, prompt: Sequence[int]) -> list[int]:
        settings = self.settings
        end = max(len(prompt) - settings.question, settings.head)
        between = prompt[settings.head : end]
        parts = [between[i : i + settings.chunk] for i in range(0, len(between), settings.chunk)]
        room = max(settings.kept, math.ceil(settings.share * len(prompt)))
        scores = bm25(parts, set(prompt[end:]))
        chosen: list[int] = []
        for i in sorted(range(len(parts)), key=lambda i: (-scores[i], i)):
            if len(parts[i]) > room:
                break
            chosen.append(i)
            room -= len(parts[i])
        middle = [token for i in sorted(chosen) for token in parts[i]]
        return [*prompt[: settings.head], *middle, *prompt[end:]]


def bm25(parts: Sequence[Sequence[int]], terms: set[int]) -> list[float]:
    """The score of each part for these terms; 0 where it has none of them."""
    counts = [Counter(part) for part in parts]
    mean = sum(map(len, parts)) / len(parts) if parts else 0.0
    scores = [0.0] * len(parts)
    for term in sorted(terms):
        having = sum(term in count for count in counts)
        weight = math.log(1 + (len(parts) - having + 0.5) / (having + 0.5))
        for i, count in enumerate(counts):
            often = count[term]
            norm = SATURATION * (1 - LENGTH + LENGTH * len(parts[i]) / mean)
            scores[i] += weight * often * (SATURATION + 1) / (often + norm)
    return scores


class RetrievalDrafter(ScoringDrafter):
    """A draft model that reads a shortened prompt and all of the answer. Its rows are kept as in `ScoringDrafter`."""

    def __init__(self, session: Session, shorten: Shortened) -> None:
        super().__init__(session, last=False)
        self.shorten = shorten

    def begin(self, prompt: list[int]) -> None:
        self.prompt, self.left_out = self.shorten(prompt), len(prompt)
        super().begin(self.prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        return super().propose([*self.prompt, *context[self.left_out :]], gamma, sampling, rng)


def taught(logits: Tensor, q: Tensor, p: Tensor, weight: float, tail: float) -> Tensor:
    """The target's logits [K, V] moved by `weight` (q - p), with q and p [K, V]; η T for Eq. 8.

    Tokens with q < tail · max q keep theirs: so the official code has it, while the paper (Eq. 9) looks at p̂.
    """
    likely = q >= tail * q.amax(-1, keepdim=True)
    return logits + torch.where(likely, weight * (q - p), 0.0)


class Rapid(Stateless):
    """Speculative sampling whose draft reads a shortened prompt; with η > 0 it is tested against p̂.

    The first token of a text comes from the prefill and is the target's own, and so is the token after a draft that is
    accepted whole. Greedy, q and p are those at T = 1, and a token is the argmax of z + η (q - p) (our inference: at
    T = 0 the paper's p̂ is p).
    """

    def __init__(self, target: Session, drafter: RetrievalDrafter, settings: Settings) -> None:
        self.target, self.drafter, self.settings = target, drafter, settings
        self.reach, self.lossless = settings.gamma + 1, not settings.eta

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return speculate(self.target, self.drafter, self.accept, self.settings.gamma, prompt, sampling, rng)

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """Test a draft against p̂. Rescues are the tokens that the target's own distribution would have rejected."""
        eta, tail, count = self.settings.eta, self.settings.tail, len(draft.tokens)
        if not eta:
            return exact(draft, scored, sampling, rng)
        z = wide(scored.logits)
        if sampling.greedy:
            p, q = probabilities(z, RAW), probabilities(self.drafter.logits, RAW)
            moved = torch.cat([taught(z[:count], q, p[:count], eta, tail), z[count:]])
            return beside_target(exact_test(draft, moved, sampling, rng), draft, scored, p, sampling, rng)
        p = probabilities(z, sampling)
        q = proposals(draft, p)  # its last row is zero
        moved = taught(z[:count], q[:count], p[:count], eta * sampling.temperature, tail)
        reached = torch.cat([probabilities(moved, sampling), p[count:]])  # p̂, and p for the bonus
        tested = exact_test(draft, reached.log(), RAW, rng)
        tested = replace(tested, emit=pick(residual(p, torch.minimum(q, reached)), rng))
        return beside_target(tested, draft, scored, p, sampling, rng)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError for a draft model with another tokenizer."""
    target = source = pair.session("target", watch)
    if settings.drafter == "draft":
        pair.need_one_tokenizer("rapid shortens the target's prompt, and adds up both models' distributions")
        source = pair.session("draft", watch)
    else:
        pair.need_one_device("rapid drafts with the target itself")
    draft = Session(source.model, "draft", watch, source.vocabulary, source.runtime, home=source.device)
    return Rapid(target, RetrievalDrafter(draft, Shortened(settings)), settings)
