"""Settings of methods whose drafts can be tested by the exact rule or by typical acceptance, lossy at T > 0."""

from typing import Literal

from pydantic import Field

from specbench.config import Settings
from specbench.engine.accept import Accept
from specbench.engine.trees import exact_tree
from specbench.engine.typical import Bonus, Typical


class TypicalSettings(Settings):
    epsilon: float = Field(default=0.09, gt=0, le=1, description="typical: p(d) that always stands, if exceeded (ε)")
    delta: float = Field(default=0.3, gt=0, le=1, description="typical: else p(d) must exceed δ exp(-H(p)) (δ)")
    bonus: Bonus = Field(
        default="likeliest", description="typical, T > 0: the token after the path is p's likeliest, or drawn from p"
    )

    def typical(self) -> Typical:
        return Typical(self.epsilon, self.delta, self.bonus)


class TreeSettings(TypicalSettings):
    rule: Literal["exact", "typical"] = Field(
        default="exact",
        description="which path of a tree stands: that of the exact rule, or of typical tokens (lossy at T > 0)",
    )

    def accept(self) -> Accept:
        return self.typical() if self.rule == "typical" else exact_tree


def is_exact(accept: Accept) -> bool:
    """True if a rule leaves the target's law as it is."""
    return not isinstance(accept, Typical)
