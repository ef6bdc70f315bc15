"""Speculative cascades: the draft model speaks where it is good enough, the target elsewhere (arXiv 2405.19261). Lossy.

Narasimhan et al. A deferral rule makes of the draft's q and the target's p a mixture π: q where the rule trusts the
draft, p elsewhere. Speculative sampling then follows π, bonus token included: exact for π, lossy for p.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Settings as Base
from specbench.engine.accept import beside_target, exact_test
from specbench.engine.drafters import Drafter
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import draw, probabilities
from specbench.engine.session import Session
from specbench.engine.speculate import speculate
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Stateless, Verdict, Watch

RAW = Sampling(1.0)


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")
    defer: Literal["chow", "diff", "opt"] = Field(description="the rule that decides where the draft speaks")
    alpha: float = Field(ge=-1, le=1, description="how much worse the draft may be (α)")


def trusted(p: Tensor, q: Tensor, rule: str, alpha: float) -> Tensor:
    """Where the draft speaks, bool [n], by the distributions of target and draft [n, V].

    chow: max q ≥ 1 - α; diff: max q ≥ max p - α; opt: max q ≥ max p - α TV(p, q).
    """
    highest = q.amax(-1)
    if rule == "chow":
        return highest >= 1 - alpha
    margin = alpha if rule == "diff" else alpha * (p - q).clamp(min=0).sum(-1)
    return highest >= p.amax(-1) - margin


class ScoringDrafter(Drafter):
    """A draft model whose logits [K, V] of the round's places are in `logits`.

    With `last` it also reads its last token, and there are K + 1 rows.
    """

    def __init__(self, session: Session, last: bool = True) -> None:
        self.session, self.last = session, last

    def begin(self, prompt: list[int]) -> None:
        self.session.restart(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """γ tokens by γ forwards, or one more."""
        rows = [self.session.catch_up(context).logits[-1:]]
        tokens, probs = [], []
        for left in reversed(range(gamma)):
            token, q = draw(rows[-1], sampling, rng)
            tokens.append(token)
            probs.append(q)
            if left or self.last:
                rows.append(self.session.forward(token).logits)
        self.logits = torch.cat(rows)
        return Draft(torch.cat(tokens), None if sampling.greedy else torch.cat(probs))  # type: ignore[arg-type]


class Cascade(Stateless):
    """Speculative sampling that follows the mixture of a deferral rule.

    The first token of a text comes from the prefill and is the target's own.
    """

    lossless = False

    def __init__(self, target: Session, draft: Session, settings: Settings) -> None:
        self.target, self.drafter, self.settings = target, ScoringDrafter(draft), settings
        self.reach = settings.gamma + 1

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return speculate(self.target, self.drafter, self.accept, self.settings.gamma, prompt, sampling, rng)

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """Test a draft against π. Rescues are the tokens that the target's own distribution would have rejected.

        At T = 0 the rule compares distributions at T = 1, and π is the argmax of one of them.
        """
        at = RAW if sampling.greedy else sampling
        p, q = probabilities(scored.logits, at), probabilities(self.drafter.logits, at)
        draft_speaks = trusted(p, q, self.settings.defer, self.settings.alpha)[:, None]
        # As logits, of which T = 1 makes the mixture again; greedy, only their order counts.
        mixture = torch.where(draft_speaks, q, p).log()
        tested = exact_test(draft, mixture, sampling if sampling.greedy else RAW, rng)
        return beside_target(tested, draft, scored, p, sampling, rng)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError if target and draft have different tokenizers."""
    pair.need_one_tokenizer("a cascade mixes the two models' distributions")
    return Cascade(pair.session("target", watch), pair.session("draft", watch), settings)
