"""CoSpec: collaborative speculative decoding (arXiv 2605.24793). Lossy.

Where draft and target differ, an arbitrator decides whose token is kept; it is trained for right answers, not for the
target's. Where they agree, the token stands.
"""

import re
from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from torch import Tensor

from specbench.arbitrator import ROLE, find_arbitrator, with_backbone
from specbench.decoding.accept import Tested, exact_test, weigh
from specbench.decoding.arbiters import Always, Arbiter, Block, Learned, Never, Oracle, Random
from specbench.decoding.drafters import Drafter
from specbench.decoding.sampling import pick, probabilities
from specbench.decoding.session import Session
from specbench.decoding.speculate import speculate
from specbench.decoding.types import Draft, Method, Round, Sampling, Scored, Utility, Verdict, Watch
from specbench.methods.drafting import Drafted, Drafting, model_drafter
from specbench.models import Pair
from specbench.runtimes.choose import beside

Candidates = Literal["coupled", "independent"]


class Settings(Drafting):
    threshold: float = Field(ge=0, le=1, description="a mismatch is kept if π is more (δ); 1: never")
    arbiter: str = Field(description="who decides: trained, or always, never, random:P or oracle to compare with")
    arbitrator: str = Field(description="trained adapters and head: a file, or `auto` (what ships with the pair)")
    backbone: str = Field(description="the arbitrator's model: draft (sharing its weights), or one by name or folder")
    mask: Literal["hybrid", "causal"] = Field(description="hybrid: draft and target tokens of a round read each other")
    candidates: Candidates = Field(
        description="at T > 0 coupled: both tokens as speculative sampling draws them; independent: each alone"
    )

    @field_validator("arbiter")
    @classmethod
    def known(cls, arbiter: str) -> str:
        if arbiter not in ("trained", "always", "never", "oracle") and probability(arbiter) is None:
            raise PydanticCustomError("arbiter", "trained, always, never, oracle, or random:P with P from 0 to 1")
        return arbiter


def probability(arbiter: str) -> float | None:
    """P of random:P; None for anything else."""
    found = re.fullmatch(r"random:([0-9.]+)", arbiter)
    try:
        value = float(found[1]) if found else -1.0
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


class CoSpec(Drafted):
    """Speculative sampling whose mismatches are put to an arbiter (section 3.3, appendix F).

    `never` is speculative sampling token for token, at any temperature, where candidates are coupled.
    """

    def __init__(self, target: Session, drafter: Drafter, settings: Settings, arbiter: Arbiter, hashes: dict[str, str]):
        self.target, self.drafter, self.settings, self.arbiter, self.hashes = target, drafter, settings, arbiter, hashes
        self.lossless = isinstance(arbiter, Never)
        self.reach = 2 * settings.gamma + 1  # a block of drafted and target tokens behind the text

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        def prefill(target: Session, prompt: list[int]) -> Scored:
            self.arbiter.begin(prompt)
            return target.restart(prompt)

        gamma = self.settings.gamma
        for one in speculate(self.target, self.drafter, self.accept, gamma, prompt, sampling, rng, prefill=prefill):
            self.arbiter.read(one.tokens)
            yield one

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """Matches stand; at each mismatch the arbiter keeps the draft's token or ends the round (Eq. 12-15)."""
        tested = candidates(draft, scored.logits, sampling, rng, self.settings.candidates)
        weighed = weigh(draft, scored, sampling, rng, tested)
        block = block_of(draft.tokens, tested, weighed.drafted, weighed.emit, weighed.passed)
        kept: list[int] = []
        for i, keeps in zip(block.mismatches, self.arbiter.keeps(block, rng), strict=False):
            if not keeps:
                return weighed.verdict(i, tuple(kept))
            kept.append(i)
        return weighed.verdict(len(weighed.drafted), tuple(kept))

    def inputs(self) -> dict[str, str]:
        return {**super().inputs(), **self.hashes}

    def told(self, utility: Utility) -> None:
        """What a text is worth, for the oracle; others have no use for it."""
        if isinstance(self.arbiter, Oracle):
            self.arbiter.utility = utility


def candidates(draft: Draft, logits: Tensor, sampling: Sampling, rng: torch.Generator, how: Candidates) -> Tested:
    """Which of K draft tokens match the target's candidates, and the candidates themselves, from logits [K + 1, V].

    At T = 0 the candidate is the argmax. At T > 0 both are draws (section 3.1). Coupled (our inference): by speculative
    sampling, whose test and residual make the candidate a draw of p that equals the draft's as often as can be;
    independent: of p alone.
    """
    if how == "coupled" or sampling.greedy:
        return exact_test(draft, logits, sampling, rng)
    emit = pick(probabilities(logits, sampling), rng)
    return Tested(draft.tokens == emit[:-1], emit)


def block_of(tokens: Tensor, tested: Tested, drafted: list[int], emit: list[int], passed: list[bool]) -> Block:
    """What the arbiter reads (Eq. 9, without the bonus): d_1 … d_K, then t_1 … t_K (their order is our inference)."""
    targets = torch.where(tested.passed, tokens, tested.emit[:-1])
    chosen = [d if match else t for d, t, match in zip(drafted, emit, passed, strict=False)]
    return Block(drafted, chosen, [i for i, match in enumerate(passed) if not match], torch.cat([tokens, targets]))


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError for an arbitrator or a backbone that does not fit the pair."""
    arbiter, hashes = chosen_arbiter(settings, pair, watch)
    return CoSpec(pair.session("target", watch), model_drafter(settings, pair, watch), settings, arbiter, hashes)


def chosen_arbiter(settings: Settings, pair: Pair, watch: Watch) -> tuple[Arbiter, dict[str, str]]:
    """The arbiter of the settings, and hashes of what it was made of."""
    if settings.arbiter == "trained":
        model, head = find_arbitrator(settings.arbitrator, with_backbone(pair, settings.backbone))
        session = Session(model, ROLE, watch, 1, beside(pair.runtime, model))
        return Learned(session, settings.threshold, settings.mask == "hybrid"), head.hashes()
    chance = probability(settings.arbiter)
    if chance is not None:
        return Random(chance), {}
    return {"always": Always, "never": Never, "oracle": Oracle}[settings.arbiter](), {}
