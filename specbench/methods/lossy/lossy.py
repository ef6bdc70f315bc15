"""Lossy speculative decoding: one fixed threshold decides which rejected draft tokens are kept anyway. Lossy.

`gate` is the static gate that CSD compares itself with (arXiv 2604.13634, section 5.1; Eq. 3 without a memory).
`lenience` multiplies q by a factor ε where it is compared with p (Leviathan et al., arXiv 2211.17192).
`typical` keeps what the target finds typical at T > 0, whatever the draft's q (Medusa, arXiv 2401.10774).
"""

import math
from typing import Literal

import torch
from pydantic import Field

from specbench.engine.accept import Weighed, exact_test, weigh
from specbench.engine.drafters import Drafter
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Draft, Method, Sampling, Scored, Verdict, Watch
from specbench.methods.drafting import DraftedMethod, DraftSettings, model_drafter
from specbench.methods.rules import TypicalSettings


class Settings(DraftSettings, TypicalSettings):
    form: Literal["gate", "lenience", "typical"] = Field(description="which rule keeps a token")
    gate_threshold: float = Field(ge=0, le=1, description="gate: least p(draft)/p(target token) to keep (τ); 1: SpS")
    lenience: float = Field(ge=0, le=1, description="lenience: accept with min(1, p/(ε q)) (ε); 1: SpS")


class Lossy(DraftedMethod):
    """Speculative sampling that keeps a rejected token if the target finds it likely enough.

    With a threshold of 1 it is speculative sampling, except for exact ties with the likeliest token, which are kept.
    (Not so `typical`, which also rejects tokens that speculative sampling keeps.)
    """

    lossless = False
    rescues = True

    def __init__(self, target: Session, drafter: Drafter, settings: Settings) -> None:
        self.target, self.drafter, self.settings = target, drafter, settings
        self.gamma, self.reach = settings.gamma, settings.gamma + 1
        threshold = settings.lenience if settings.form == "lenience" else settings.gate_threshold
        self.log_threshold = math.log(threshold) if threshold else -math.inf

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """Keep a rejected d if z(d) - max z ≥ ln threshold, by raw logits.

        At T = 0 both forms are this gate: p(d) ≥ ε max p. At T > 0 the gate applies where speculative sampling rejects,
        and a rejected argmax stays rejected (else a threshold of 1 would keep it); lenience has its own test.
        """
        if self.settings.form == "typical":
            return self.settings.typical()(draft, scored, sampling, rng)
        if self.settings.form == "lenience" and not sampling.greedy:
            weighed, kept = weigh_leniently(draft, scored, self.settings.lenience, sampling, rng)
        else:
            weighed = weigh(draft, scored, sampling, rng)
            pairs = zip(weighed.drafted, weighed.targets, weighed.gaps, strict=True)
            kept = [d != t and gap >= self.log_threshold for d, t, gap in pairs]
        return weighed.rescue(lambda i: kept[i])


def weigh_leniently(
    draft: Draft, scored: Scored, lenience: float, sampling: Sampling, rng: torch.Generator
) -> tuple[Weighed, list[bool]]:
    """The exact test of each draft token at T > 0, and the lenient test [K] with the same u: u ε q < p.

    The correction is drawn from norm((p - q)₊), as in the exact rule. So no token is emitted with a probability above
    p/ε. No other correction brings the distribution nearer to p: this one adds mass only where p > q, never beyond p.
    """
    tested = exact_test(draft, scored.logits, sampling, rng)
    assert tested.p is not None and tested.needed is not None
    weighed = weigh(draft, scored, sampling, rng, tested, [lenience * tested.needed < tested.p])
    return weighed, weighed.columns[0]


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return Lossy(pair.session("target", watch), model_drafter(settings, pair, watch), settings)
