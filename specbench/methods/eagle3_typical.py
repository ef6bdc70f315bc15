"""EAGLE-3's trees under Medusa's typical acceptance: the longest path whose tokens the target finds typical. Lossy.

Medusa (arXiv 2401.10774): a token of a tree stands if p(d) > min(ε, δ exp(-H(p))), whatever the draft's q. Of all paths
of standing tokens the longest is accepted, and of equally long ones the likeliest.
"""

import torch
from pydantic import Field

from specbench.engine.accept import predicting_rows, weigh
from specbench.engine.models.eagle_head import EagleHead, layers_read
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import probabilities
from specbench.engine.session import Session
from specbench.engine.trees import tree_test
from specbench.engine.types import Draft, Method, Sampling, Scored, Verdict, Watch
from specbench.methods import eagle3
from specbench.methods.eagle3 import Eagle3, EagleDrafter
from specbench.methods.eagle3 import Settings as Base
from specbench.methods.lossy import typical

RAW = Sampling(1.0)


class Settings(Base):
    epsilon: float = Field(gt=0, le=1, description="p(d) that always stands, if exceeded (ε)")
    delta: float = Field(gt=0, le=1, description="else p(d) must exceed δ exp(-H(p)) (δ)")


def typical_tree(
    draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator, epsilon: float, delta: float
) -> Verdict:
    """Accept the longest path of a tree of point masses whose tokens all are typical; of equal ones the likeliest.

    At T = 0, p is taken at T = 1; its argmax always stands. The token after the path is the target's own, drawn from
    all of p at T > 0. Rescues are the tokens of the path that the exact rule would have rejected.
    """
    p = predicting_rows(draft, probabilities(scored.logits, RAW if sampling.greedy else sampling))  # [K, V]
    stands = typical(draft.tokens, p, epsilon, delta)
    chances = p.gather(-1, draft.tokens[:, None])[:, 0].log()
    tested = tree_test(draft, scored.logits, sampling, rng)
    weighed = weigh(draft, scored, sampling, rng, tested, [stands, chances])
    kept, logs = weighed.columns
    paths: dict[int, tuple[int, float, tuple[int, ...]]] = {-1: (0, 0.0, ())}  # length, log-probability, nodes
    for node, parent in enumerate(weighed.parents or ()):
        if kept[node] and parent in paths:
            length, log, path = paths[parent]
            paths[node] = (length + 1, log + logs[node], (*path, node))
    best = max(paths.values(), key=lambda found: found[:2])[2]
    return weighed.along(best, tuple(node for node in best if not weighed.passed[node]))


class TypicalDrafter(EagleDrafter):
    """EAGLE-3's drafter, whose trees are judged by what is typical."""

    def __init__(self, head: EagleHead, session: Session, layers: tuple[int, ...], settings: Settings) -> None:
        super().__init__(head, session, layers, settings.total_tokens, settings.top_k, settings.depth)
        self.epsilon, self.delta = settings.epsilon, settings.delta

    def judge(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        return typical_tree(draft, scored, sampling, rng, self.epsilon, self.delta)


class Typical(Eagle3):
    """Speculative decoding with the head's trees and typical acceptance."""

    lossless = False


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for a head that does not fit it."""
    head, hashes = eagle3.loaded(settings.head, pair)
    session = eagle3.head_session(head, pair, watch)
    drafter = TypicalDrafter(head, session, layers_read(pair.models["target"]), settings)
    return Typical(pair.session("target", watch), drafter, hashes)
