"""A bandit chooses the size of each round's tree. Lossless.

TLT (arXiv 2511.16665): of a few strategies (levels, width and tokens of a tree), mostly the one whose rounds were worth
most. The trees are those of `eagle2`, or those of a head of EAGLE-3, which the paper has; `tlt_online` has it learn.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Settings as Base
from specbench.engine.lengths import Lengths
from specbench.engine.models.eagle_head import EagleHead, layers_read
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Sampling, Verdict, Watch
from specbench.methods.drafting import DraftedMethod
from specbench.methods.heads import eagle3
from specbench.methods.heads.eagle3 import EagleDrafter, Grown, Read, grow
from specbench.methods.trees.eagle2 import Grow, Growing

Size = Annotated[int, Field(ge=1)]


class BanditSettings(Base):
    """No draft ends at an end token."""

    strategies: tuple[tuple[Size, Size, Size], ...] = Field(
        min_length=1, description="trees to choose from: levels, top_k and nodes of each, as in eagle2"
    )
    epsilon: float = Field(ge=0, le=1, description="share of rounds whose strategy is chosen evenly at random")
    window: int = Field(ge=1, description="rounds of a strategy whose worth is remembered")
    token: float = Field(ge=0, description="time of each further token of a target forward, over that of one token")
    draft: float = Field(gt=0, description="time of a draft forward of one token, over the target's")
    draft_token: float = Field(ge=0, description="time of each further token of it, over the target's forward")

    def times(self) -> list[float]:
        """The time of a round with each strategy's full tree, in target forwards of one token."""
        return [
            1 + self.token * nodes + self.draft * levels + self.draft_token * (levels - 1) * (top_k - 1)
            for levels, top_k, nodes in self.strategies
        ]


class Settings(BanditSettings):
    drafter: Literal["draft", "eagle3"] = Field(
        default="draft", description="trees of the draft model, or of a head of EAGLE-3"
    )
    head: str = Field(
        default="auto", description="eagle3: trained head: a file, or `auto` (the one that ships with the pair)"
    )


class Strategies(Lengths):
    """ε-greedy: the strategy with the highest median of committed tokens per time over its last rounds.

    A strategy that was never tried is the best of all; ties go to the earlier one. The official code measures times,
    here they come from settings, so that a text is decoded alike each time; and it learns for each size of a batch,
    here there is one. Learning goes on from text to text of a task.
    """

    def __init__(self, times: Sequence[float], epsilon: float, window: int) -> None:
        self.times, self.epsilon, self.window = times, epsilon, window
        self.reset()

    def reset(self) -> None:
        self.restore([[] for _ in self.times])

    def state(self) -> Any:
        return [list(rewards) for rewards in self.rewards]

    def restore(self, state: Any) -> None:
        self.rewards = [deque[float](rewards, maxlen=self.window) for rewards in state]

    def choose(self, rng: torch.Generator) -> int:
        """The index of the next round's strategy. At ε > 0 the host waits for two random numbers."""
        explore, at = torch.rand(2, generator=rng, device=rng.device).tolist() if self.epsilon else (1.0, 0.0)
        worth = [statistics.median(rewards) if rewards else math.inf for rewards in self.rewards]
        self.chosen = int(at * len(self.times)) if explore < self.epsilon else worth.index(max(worth))
        return self.chosen

    def observe(self, verdict: Verdict) -> None:
        self.rewards[self.chosen].append((verdict.accepted + 1) / self.times[self.chosen])


def trees(levels: int, top_k: int, nodes: int) -> Grow:
    """How trees of a strategy grow."""
    return partial(grow, top_k=top_k, depth=levels - 1, most=nodes)


class Sized(Growing):
    """Grows a tree of the size that the strategies choose."""

    def __init__(self, session: Session, sizes: Sequence[tuple[int, int, int]], strategies: Strategies) -> None:
        super().__init__(session, trees(*sizes[0]))
        self.sizes, self.strategies = sizes, strategies
        self.lengths = strategies

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        self.grow = trees(*self.sizes[self.strategies.choose(rng)])
        return super().propose(context, gamma, sampling, rng)


class SizedHead(EagleDrafter):
    """EAGLE-3's drafter, whose trees have the size that the strategies choose."""

    def __init__(
        self,
        head: EagleHead,
        session: Session,
        layers: tuple[int, ...],
        sizes: Sequence[tuple[int, int, int]],
        strategies: Strategies,
    ) -> None:
        levels, top_k, nodes = (max(column) for column in zip(*sizes, strict=True))
        super().__init__(head, session, layers, nodes + 1, top_k, levels - 1)
        self.sizes, self.lengths = sizes, strategies
        self.strategies = strategies

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        self.chosen = trees(*self.sizes[self.strategies.choose(rng)])
        return super().propose(context, gamma, sampling, rng)

    def grow(self, logits: Tensor, read: Read) -> Grown:
        return self.chosen(logits, read)


class TreeBandit(DraftedMethod):
    """Draft a tree of a chosen size, score it by one target forward, keep the path that passes."""

    lossless = True
    accept = staticmethod(exact_tree)

    def __init__(self, target: Session, drafter: Sized | SizedHead, hashes: dict[str, str] | None = None) -> None:
        self.target, self.drafter, self.hashes = target, drafter, hashes or {}
        self.gamma = max(levels for levels, _, _ in drafter.sizes)
        self.reach = 1 + max(nodes for _, _, nodes in drafter.sizes)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses the draft model or the head. Raises UserError for a head that does not fit."""
    strategies = Strategies(settings.times(), settings.epsilon, settings.window)
    target = pair.session("target", watch)
    if settings.drafter == "draft":
        return TreeBandit(target, Sized(pair.session("draft", watch), settings.strategies, strategies))
    head, hashes = eagle3.loaded(settings.head, pair)
    session, layers = eagle3.head_session(head, pair, watch), layers_read(pair.models["target"])
    return TreeBandit(target, SizedHead(head, session, layers, settings.strategies, strategies), hashes)
