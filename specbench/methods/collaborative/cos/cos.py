"""CoS: collaborative decoding via speculation, by alternate proposals of n models (arXiv 2502.01662, Algorithm 2).

Lossless as to r, the distribution of standard collaborative decoding. With two models, n = 2: Figure 2 (b).
"""

from collections.abc import Iterator, Sequence

import torch
from pydantic import Field

from specbench.config import UserError
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Combination, Method, Round, Sampling, Watch
from specbench.methods.collaborative.cos.collaborate import Collaboration
from specbench.methods.collaborative.cos.combining import Collaborating, Proposing, parts, proposer


class Settings(Proposing):
    """The settings of proposing methods, and how many tokens each model proposes."""

    gamma: int | tuple[int, ...] | None = Field(
        description="tokens that a model proposes at a time (γ). A number is for the first proposer, and the others "
        "propose 1; a list has one for each model; null: as the pair says, or 1"
    )


class CoS(Collaborating):
    """The model that has read the least scores all pending tokens, and the same forward proposes the next one."""

    def __init__(
        self,
        sessions: list[Session],
        combination: Combination,
        inputs: dict[str, str],
        gammas: Sequence[int],
        first: int,
    ) -> None:
        super().__init__(sessions, combination, inputs)
        self.gammas, self.first = gammas, first
        self.order = [first, *(i for i in range(len(sessions)) if i != first)]
        self.reach = sum(gammas) + 1

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        group = Collaboration(self.sessions, self.combination)
        yield Round([group.begin(prompt, sampling, rng)])
        while True:
            if not group.pending:  # the first proposer starts again
                for _ in range(self.gammas[self.first]):
                    group.propose(self.first)
            cached = group.cached
            model = min(self.order, key=lambda i: cached[i])
            group.propose(model)  # scores what is pending; its token is the bonus token
            verdict = group.judge()
            if verdict is not None:
                yield Round(verdict.committed, verdict)
            if verdict is None or verdict.token is None:  # nothing was rejected: the rest of the model's proposal
                for _ in range(self.gammas[model] - 1):
                    group.propose(model)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    first = proposer(settings.proposer, pair)
    gammas = gammas_of(settings.gamma, pair.collaboration, pair.gammas, first)
    return CoS(*parts(settings, pair, watch), gammas, first)


def gammas_of(
    setting: int | Sequence[int] | None, roles: Sequence[str], of_pair: Sequence[int | None], first: int
) -> list[int]:
    """γ of each member by the setting `gamma`; `of_pair` are those in the pair's file, or is empty.

    Raises UserError for a list of another length.
    """
    if setting is None:
        return [gamma or 1 for gamma in of_pair or [None] * len(roles)]
    gammas = [setting if i == first else 1 for i in range(len(roles))] if isinstance(setting, int) else list(setting)
    if len(gammas) != len(roles):
        raise UserError(f"gamma={setting}: {len(gammas)} for {len(roles)} models; give one each: {', '.join(roles)}")
    if min(gammas) < 1:
        raise UserError(f"gamma={setting}: a model proposes at least one token; give 1 or more")
    return gammas
