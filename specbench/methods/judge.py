"""Judge decoding (Bachmann et al., arXiv 2501.19309). Lossy.

A linear head reads the target's last hidden state behind each draft token and judges whether the token is right, not
whether it is the target's own. What the head finds right is kept where the exact rule would have rejected it.
"""

import math
from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor

from specbench.decoding.accept import weigh
from specbench.decoding.drafters import Drafter
from specbench.decoding.session import LAST, Session
from specbench.decoding.speculate import speculate
from specbench.decoding.types import Draft, Method, Round, Sampling, Scored, Verdict, Watch
from specbench.heads import Head, find_head, hidden_size
from specbench.methods.drafting import Drafted, Drafting, model_drafter
from specbench.models import Pair

KIND = "judge"


class Settings(Drafting):
    threshold: float = Field(ge=0, le=1, description="a rejected token is kept if σ(head) is more; 1: SpS")
    head: str = Field(description="trained head: a file, or `auto` (the one that ships with the pair)")


class Judge(Drafted):
    """Speculative sampling that keeps a rejected token if the head finds it right: σ(w·h + b) > threshold.

    h is the target's last hidden state after reading the draft token itself, which the verifying forward gives. The
    comparison is made on w·h + b against the threshold's log odds. Those of 1 are infinite, which nothing exceeds, and
    the head draws nothing from the generator: so a threshold of 1 is speculative sampling token for token, at any
    temperature.
    """

    lossless = False

    def __init__(self, target: Session, drafter: Drafter, settings: Settings, head: Head) -> None:
        self.target, self.drafter, self.settings, self.head = target, drafter, settings, head
        self.reach = settings.gamma + 1
        wide = torch.promote_types(target.model.dtype, torch.float32)
        self.weight = head.tensors["weight"].to(target.device, wide)  # [D]
        self.bias = head.tensors["bias"].to(target.device, wide)  # []
        odds = settings.threshold
        self.log_odds = math.log(odds) - math.log1p(-odds) if 0 < odds < 1 else math.inf if odds else -math.inf

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        gamma = self.settings.gamma
        return speculate(self.target, self.drafter, self.accept, gamma, prompt, sampling, rng, read_states)

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """Scan the draft: a token stands by the exact rule, or by the head; stop at the first that has neither.

        At T > 0 the head is asked where speculative sampling rejects, also about the target's likeliest token (our
        inference: it judges what is right, whoever prefers it).
        """
        assert scored.hidden is not None
        # Row 0 is the state behind the last committed token, row i + 1 the one behind the i-th draft token.
        states = scored.hidden[1:].to(self.weight.dtype)
        weighed = weigh(draft, scored, sampling, rng, also=[torch.addmv(self.bias, states, self.weight)])
        rescued: list[int] = []
        for i, passed in enumerate(weighed.passed):
            if passed:
                continue
            if not weighed.also[0][i] > self.log_odds:
                return weighed.verdict(i, tuple(rescued))
            rescued.append(i)
        return weighed.verdict(len(weighed.drafted), tuple(rescued))

    def inputs(self) -> dict[str, str]:
        return {**super().inputs(), **self.head.hashes()}


def read_states(target: Session, recent: Tensor, draft: Draft) -> Scored:
    """One forward over the last committed token and the draft: logits [K + 1, V] and last hidden states [K + 1, D]."""
    return target.forward(torch.cat([recent[-1:], draft.tokens]), hidden=LAST)


def shapes(pair: Pair) -> dict[str, tuple[int, ...]]:
    """What a head for the pair's target holds: w [D] and b []."""
    return {"weight": (hidden_size(pair.models["target"]),), "bias": ()}


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    head = find_head(settings.head, KIND, pair, shapes(pair))
    return Judge(pair.session("target", watch), model_drafter(settings, pair, watch), settings, head)
