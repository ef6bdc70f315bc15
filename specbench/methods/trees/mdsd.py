"""MDSD: several drafts for each position, verified in one tree. Lossless.

SpecTr (arXiv 2310.15141) and SpecInfer (arXiv 2305.09781) draw them independently. Drawn without replacement, more of
them are accepted (Hu et al., arXiv 2502.18779). They are verified by recursive rejection, one sibling after the other,
by SpecTr's own rule, k-sequential selection, or from the leaves on (traversal verification). `specbench analyze
multi-draft` measures how far recursive rejection is from the best possible rule.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.accept import Accept
from specbench.engine.joint import traversal
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.speculate import speculate
from specbench.engine.trees import exact_tree
from specbench.engine.types import Method, Round, Sampling, Watch
from specbench.methods.trees.kseq import kseq
from specbench.methods.trees.rsd import Branching, Independent, TreeSpeculation


class Settings(Base):
    """The number and length of drafts are fixed: no draft ends at an end token."""

    drafts: int = Field(ge=1, description="drafts of a round (k)")
    gamma: int = Field(ge=1, description="tokens of each (γ)")
    replacement: bool = Field(description="independent drafts; false: their first tokens differ")
    rule: Literal["recursive", "kseq", "traversal"] = Field(
        default="recursive", description="recursive rejection, SpecTr's K-SEQ (independent drafts), or traversal"
    )


RULES = {"recursive": exact_tree, "kseq": kseq, "traversal": traversal}


class MDSD(TreeSpeculation):
    """k chains of γ tokens. Without replacement, their first tokens differ: RSD-C with branching k, 1, 1, …

    Greedy chains would all be the same, so at T = 0 their first tokens are always the k likeliest ones.
    """

    penalised = True

    def __init__(self, target: Session, draft: Session, settings: Settings) -> None:
        k, gamma = settings.drafts, settings.gamma
        super().__init__(target, Branching(draft, [k]), gamma, k * gamma)
        self.independent = Independent(draft, k, settings.rule != "traversal") if settings.replacement else None
        self.rule: Accept = RULES[settings.rule]

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        drafter = self.drafter if sampling.greedy or self.independent is None else self.independent
        return speculate(self.target, drafter, self.rule, self.gamma, prompt, sampling, rng)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError for K-SEQ without independent drafts."""
    if settings.rule == "kseq" and not settings.replacement:
        raise UserError("mdsd: rule kseq needs independent drafts; --set mdsd.replacement=true, or choose another rule")
    return MDSD(pair.session("target", watch), pair.session("draft", watch), settings)
