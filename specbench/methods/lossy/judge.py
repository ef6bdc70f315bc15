"""Judge decoding (Bachmann et al., arXiv 2501.19309). Lossy.

A linear head reads the target's last hidden state after each draft token and judges whether the token is right, not
whether it is the target's own. Tokens that the head finds right are kept where the exact rule would reject them.
"""

import math
from collections.abc import Sequence

import torch
from pydantic import Field

from specbench.engine.accept import weigh
from specbench.engine.drafters import Drafter
from specbench.engine.models.heads import Head, find_head, hidden_size
from specbench.engine.models.pair import Pair
from specbench.engine.session import LAST, Session
from specbench.engine.speculate import unread
from specbench.engine.types import Draft, Method, Sampling, Scored, Verdict, Watch
from specbench.methods.drafting import DraftedMethod, DraftSettings, model_drafter

KIND = "judge"


class Settings(DraftSettings):
    threshold: float = Field(ge=0, le=1, description="a rejected token is kept if σ(head) is more; 1: SpS")
    head: str = Field(description="trained head: a file, or `auto` (the one that ships with the pair)")


def read_states(target: Session, recent: Sequence[int], draft: Draft, hidden: Sequence[int] = ()) -> Scored:
    """One forward over the last committed token and the draft: logits [K + 1, V] and last hidden states [K + 1, D]."""
    return target.forward(unread(recent, draft), hidden=LAST)


class Judge(DraftedMethod):
    """Speculative sampling that keeps a rejected token if the head finds it right: σ(w·h + b) > threshold.

    h is the target's last hidden state after the draft token itself, which the verifying forward computes. w·h + b is
    compared with the log odds of the threshold. Those of 1 are infinite, and the head draws no random numbers, so a
    threshold of 1 is speculative sampling token for token, at any temperature.
    """

    lossless = False
    rescues = True
    score = staticmethod(read_states)

    def __init__(self, target: Session, drafter: Drafter, settings: Settings, head: Head) -> None:
        self.target, self.drafter, self.settings, self.hashes = target, drafter, settings, head.hashes()
        self.gamma, self.reach = settings.gamma, settings.gamma + 1
        wide = torch.promote_types(target.model.dtype, torch.float32)
        self.weight = head.tensors["weight"].to(target.device, wide)  # [D]
        self.bias = head.tensors["bias"].to(target.device, wide)  # []
        odds = settings.threshold
        self.log_odds = math.log(odds) - math.log1p(-odds) if 0 < odds < 1 else math.inf if odds else -math.inf

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """Scan the draft: a token stands by the exact rule or by the head.

        At T > 0 the head is asked wherever speculative sampling rejects, even about the target's likeliest token (our
        inference: it judges what is right, whichever model prefers it).
        """
        assert scored.hidden is not None
        # Row 0 is the state after the last committed token, row i + 1 the one after draft token i.
        states = scored.hidden[1:].to(self.weight.dtype)
        weighed = weigh(draft, scored, sampling, rng, columns=[torch.addmv(self.bias, states, self.weight)])
        return weighed.rescue(lambda i: weighed.columns[0][i] > self.log_odds)


def shapes(pair: Pair) -> dict[str, tuple[int, ...]]:
    """The shapes of a head's tensors for the pair's target: w [D] and b []."""
    return {"weight": (hidden_size(pair.models["target"]),), "bias": ()}


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    head = find_head(settings.head, KIND, pair, shapes(pair))
    return Judge(pair.session("target", watch), model_drafter(settings, pair, watch), settings, head)
