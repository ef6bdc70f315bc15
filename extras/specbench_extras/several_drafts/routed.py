"""Of several draft models those propose that have agreed with the target most. Lossless.

CoSine (arXiv 2503.10325), its routing: each drafter has a score of how well it has foretold verified tokens, and the
best ones draft together, as in `fused`. After a round with few accepted tokens one that has drafted least gets a turn.
The paper's full text was not available. That a score is the share of places where the drafter's own likeliest token was
the target's is our inference; a secondary source has similarities of embeddings, and the drafter's confidence.
"""

from typing import Any

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.engine.drafters import ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.types import Draft, Method, Sampling, Verdict, Watch
from specbench.methods.chains.sps import SpS
from specbench_extras.several_drafts.fused import Panel, panel


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")
    drafters: int = Field(ge=1, description="models that draft together in a round")
    memory: float = Field(ge=0, lt=1, description="share of a drafter's score that its next round leaves in place")
    least: int = Field(ge=0, description="after rounds with fewer accepted tokens the drafter with fewest turns joins")


class Router(Lengths):
    """Chooses the drafters of each round by what they foretold; the draft length is fixed.

    A drafter without a turn has the highest score; ties go to the earlier one. Learning goes on from text to text of a
    task.
    """

    def __init__(self, readers: Panel, drafters: int, memory: float, least: int) -> None:
        self.panel, self.drafters, self.memory, self.least = readers, drafters, memory, least
        self.reset()

    def reset(self) -> None:
        count = len(self.panel.sessions)
        self.restore({"scores": [1.0] * count, "turns": [0] * count, "explore": False})

    def state(self) -> Any:
        return {"scores": list(self.scores), "turns": list(self.turns), "explore": self.explore}

    def restore(self, state: Any) -> None:
        self.scores: list[float] = list(state["scores"])
        self.turns: list[int] = list(state["turns"])
        self.explore: bool = state["explore"]

    def choose(self) -> list[int]:
        """The drafters of the next round, in the pair's order."""
        ranked = sorted(range(len(self.scores)), key=lambda i: (self.turns[i] > 0, -self.scores[i], i))
        chosen, others = ranked[: self.drafters], ranked[self.drafters :]
        if self.explore and others:
            chosen[-1] = min(others, key=lambda i: (self.turns[i], i))
        return sorted(chosen)

    def observe(self, verdict: Verdict) -> None:
        """Learn from a round, in place: from the tokens that stood and the first that did not."""
        tested = min(verdict.accepted + 1, len(verdict.drafted))
        said = torch.stack(self.panel.said[:tested]).tolist()  # [tested, d]
        for place, i in enumerate(self.panel.chosen):
            agreed = sum(row[place] == token for row, token in zip(said, verdict.targets, strict=False)) / tested
            self.scores[i] = self.memory * self.scores[i] + (1 - self.memory) * agreed if self.turns[i] else agreed
            self.turns[i] += 1
        self.explore = verdict.accepted < self.least


class RoutedDrafter(ModelDrafter[Panel]):
    """A panel of whose models the router's choice drafts. Models that are not chosen read a text when they are."""

    def __init__(self, readers: Panel, router: Router) -> None:
        super().__init__(readers, router)
        self.panel, self.router = readers, router

    def begin(self, prompt: list[int]) -> None:
        self.panel.chosen = self.router.choose()
        super().begin(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        self.panel.chosen = self.router.choose()
        return super().propose(context, gamma, sampling, rng)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """With no more draft models than draft together it is `fused`. Raises UserError as `panel`."""
    readers = panel(pair, watch)
    router = Router(readers, settings.drafters, settings.memory, settings.least)
    return SpS(pair.session("target", watch), RoutedDrafter(readers, router), settings.gamma)
