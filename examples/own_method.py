"""A method of your own next to exact speculative sampling: python examples/own_method.py [DOCUMENTS]

The rule keeps a drafted token that the target finds nearly as likely as its own choice. It is lossy, so the table shows
its accuracy against vanilla's. This file is the method (`build` below) and the script that measures it.
"""

import sys

import torch
from pydantic import Field

import specbench
from specbench.config import Settings as Base
from specbench.engine.accept import weigh
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.types import Draft, Method, Sampling, Scored, Verdict, Watch
from specbench.methods.drafting import DraftedMethod


class Settings(Base):
    gamma: int = Field(default=4, ge=1, description="draft tokens a round (γ)")
    gap: float = Field(default=0.5, ge=0, description="how much less likely than the target's choice, in logits")


class NearMiss(DraftedMethod):
    lossless = False

    def __init__(self, settings: Settings, pair: Pair, watch: Watch) -> None:
        self.target = pair.session("target", watch)
        self.drafter = ModelDrafter(pair.session("draft", watch))
        self.gamma, self.gap = settings.gamma, settings.gap
        self.reach = settings.gamma + 1  # the most tokens that a round feeds beyond the text

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        weighed = weigh(draft, scored, sampling, rng)
        return weighed.rescue(lambda i: weighed.gaps[i] <= self.gap)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return NearMiss(settings, pair, watch)


if __name__ == "__main__":
    documents = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with specbench.permitted(methods=[__file__]):
        run = specbench.run(["sps", f"near-miss={__file__}"], "math", limit=documents)
    print(run.summary[["task", "method", "accuracy", "tau", "speedup_decode"]])
