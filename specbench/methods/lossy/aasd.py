"""AASD: alignment-augmented speculative decoding (arXiv 2505.13204). Lossy, meant to raise scores.

Alignment sampling: what followed an n-gram in the prompt is the trunk of a tree; the siblings of each of its tokens are
the tokens that the target itself would have said there, by the prefill's logits. Conditional verification: a token
stands if the target finds it likely enough; the less sure the target is, the lower the threshold. No code was
published; what the paper leaves open is a setting.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from specbench.engine.accept import predicting_rows, weigh
from specbench.engine.drafters import Drafter
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import pick, probabilities
from specbench.engine.session import Session
from specbench.engine.trees import tree_test
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Verdict, Watch
from specbench.methods.drafting import DraftedMethod
from specbench.methods.lookup.pld import LookupSettings

RAW = Sampling(1.0)


class Settings(LookupSettings):
    candidates: int = Field(ge=0, description="the most tokens of the target's own next to each looked-up one")
    choice: Literal["likeliest", "drawn"] = Field(description="how these are chosen from the target's distribution")
    alpha: float = Field(ge=0, allow_inf_nan=False, description="how much a nat of entropy lowers the threshold (α)")
    beta: float = Field(ge=0, le=1, description="the least probability of a token that stands, at no entropy (β)")

    @property
    def reach(self) -> int:
        """The most tokens of a round, including the last committed one."""
        return 1 + self.gamma * (1 + self.candidates)


class Aligned(Drafter):
    """Drafts what followed the end of the text in the prompt, and next to it what the target would have said there.

    It looks up the prompt only, since the prefill computes the logits there.
    """

    prompt_logits = 0
    rng: torch.Generator  # which the candidates are drawn with; set before each text

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device

    def begin(self, prompt: list[int]) -> None:
        self.index = self.settings.index()
        self.index.extend(prompt)
        self.candidates: list[list[int]] = []  # [P]: for each prompt token, what the target would choose next

    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        self.candidates += choose(scored.logits, self.settings, self.rng).tolist()

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of at most γ levels, the looked-up token first in each; or an empty draft."""
        start = self.index.find(context[-self.index.longest :])
        trunk = [] if start is None else self.index.tokens[start : start + gamma]
        tokens: list[int] = []
        parents: list[int] = []
        above = -1
        for place, token in enumerate(trunk, start or 0):
            level = list(dict.fromkeys([token, *self.candidates[place - 1]]))
            parents += [above] * len(level)
            above = len(tokens)
            tokens += level
        ids = torch.tensor(tokens, dtype=torch.long, device=self.device)
        return Draft(ids, None, tuple(parents) if tokens else None)


class AASD(DraftedMethod):
    """Draft a tree from the prompt; keep tokens that the target finds likely enough."""

    lossless = False
    rescues = True

    def __init__(self, target: Session, settings: Settings) -> None:
        self.target, self.settings, self.reach, self.gamma = target, settings, settings.reach, settings.gamma
        self.drafter: Aligned = Aligned(settings, target.device)

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        self.drafter.rng = rng
        return super().rounds(prompt, sampling, rng)

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """From the context on, go to the likeliest child that stands, until none does; then emit.

        At T > 0 the test is the same, and the emitted token is drawn from the target's whole distribution (our
        inference: no token is rejected at random, so there is no residual). Rescues are the tokens on the path that are
        not the target's own draws.
        """
        tested = tree_test(draft, scored.logits, sampling, rng)
        weighed = weigh(draft, scored, sampling, rng, tested, [self.stands(draft, scored.logits)])
        parents = draft.parents or ()
        path: list[int] = []
        standing = [i for i, stands in enumerate(weighed.columns[0]) if stands]
        while children := [i for i in standing if parents[i] == (path[-1] if path else -1)]:
            path.append(max(children, key=lambda i: weighed.gaps[i]))
        return weighed.along(tuple(path), tuple(i for i in path if not weighed.passed[i]))

    def stands(self, draft: Draft, logits: Tensor) -> Tensor:
        """Conditional verification by target logits [K + 1, V]: p(d) ≥ min(β - α H(p), max p), bool [K].

        p is the target's own distribution, before temperature and filters (our inference), H(p) its entropy in nats.
        """
        p = probabilities(logits, RAW)
        threshold = self.settings.beta - self.settings.alpha * torch.special.entr(p).sum(-1)
        least = predicting_rows(draft, torch.minimum(threshold, p.amax(-1)))
        return predicting_rows(draft, p).gather(-1, draft.tokens[:, None])[:, 0] >= least


def choose(logits: Tensor, settings: Settings, rng: torch.Generator) -> Tensor:
    """C candidates [n, C] of each row of logits [n, V]: the likeliest first, or drawn (then some may be equal)."""
    if settings.choice == "likeliest":
        return logits.topk(settings.candidates).indices
    p = probabilities(logits, RAW).repeat_interleave(settings.candidates, 0)
    return pick(p, rng).view(len(logits), settings.candidates)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target."""
    return AASD(pair.session("target", watch), settings)
