"""CoSpec: collaborative speculative decoding (arXiv 2605.24793). Lossy.

Where draft and target agree, the token is kept. Where they differ, an arbiter decides whose token is kept. CoSpec's own
arbiter is trained for right answers, not for the target's; the others are there to compare with.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.accept import Tested, Weighed, exact_test, weigh
from specbench.engine.drafters import Drafter
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.choose import derived_runtime
from specbench.engine.sampling import pick, probabilities
from specbench.engine.session import Session
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Utility, Verdict, Watch
from specbench.methods.collaborative.cospec_arbitrator import ROLE, backbone_hash, find_arbitrator, with_backbone
from specbench.methods.drafting import DraftedMethod, DraftSettings, model_drafter

Candidates = Literal["coupled", "independent"]


class Settings(DraftSettings):
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
    """P of `random:P`; None for any other arbiter."""
    match = re.fullmatch(r"random:([0-9.]+)", arbiter)
    try:
        value = float(match[1]) if match else -1.0
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


@dataclass(frozen=True)
class Block:
    """What the arbiter reads of a round: K drafted tokens, and the target's candidate at each of their places."""

    drafted: list[int]  # [K]
    targets: list[int]  # [K]: the drafted token where they match
    mismatches: list[int]  # positions, from 0
    tokens: Tensor  # [2K] on the device: d_1 … d_K t_1 … t_K


class Arbiter(Protocol):
    """Reads every committed token, and is asked about the mismatches of a block, one after the other."""

    def begin(self, prompt: list[int]) -> None:
        """Start on a new prompt. This is part of the prefill."""

    def read(self, tokens: list[int]) -> None:
        """Note that these tokens were committed."""

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        """For each mismatch in turn: True keeps the draft's token. Nothing is asked after the first False."""


class CoSpec(DraftedMethod):
    """Speculative sampling whose mismatches are put to an arbiter (section 3.3, appendix F).

    With coupled candidates, `never` is speculative sampling token for token, at any temperature.
    """

    def __init__(self, target: Session, drafter: Drafter, settings: Settings, arbiter: Arbiter, hashes: dict[str, str]):
        self.target, self.drafter, self.settings, self.arbiter, self.hashes = target, drafter, settings, arbiter, hashes
        self.lossless = isinstance(arbiter, Never)
        self.rescues = not self.lossless
        self.gamma = settings.gamma
        self.reach = 2 * settings.gamma + 1  # a block of drafted and target tokens after the text

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        self.arbiter.begin(prompt)
        for step in super().rounds(prompt, sampling, rng):
            self.arbiter.read(step.tokens)
            yield step

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """Matches are kept; at each mismatch the arbiter keeps the draft's token or ends the round (Eq. 12-15)."""
        tested = candidates(draft, scored.logits, sampling, rng, self.settings.candidates)
        weighed = weigh(draft, scored, sampling, rng, tested)
        decisions = self.arbiter.keeps(block_of(draft.tokens, tested, weighed), rng)
        return weighed.rescue(lambda _: next(decisions))

    @property
    def needs_scores(self) -> bool:
        """True for the oracle."""
        return isinstance(self.arbiter, BranchOracle)

    def set_utility(self, utility: Utility) -> None:
        """Give the oracle the worth of a text; the other arbiters do not need it."""
        if isinstance(self.arbiter, BranchOracle):
            self.arbiter.utility = utility


def candidates(draft: Draft, logits: Tensor, sampling: Sampling, rng: torch.Generator, how: Candidates) -> Tested:
    """The target's candidates by its logits [K + 1, V], and which of the K draft tokens equal them.

    At T = 0 the candidate is the argmax. At T > 0 both tokens are drawn (section 3.1). Coupled (our inference): the
    test and the residual of speculative sampling make the candidate a draw from p that equals the draft's as often as
    possible. Independent: a draw from p alone.
    """
    if how == "coupled" or sampling.greedy:
        return exact_test(draft, logits, sampling, rng)
    emit = pick(probabilities(logits, sampling), rng)
    return Tested(draft.tokens == emit[:-1], emit)


def block_of(tokens: Tensor, tested: Tested, weighed: Weighed) -> Block:
    """The block of Eq. 9, without the bonus: d_1 … d_K, then t_1 … t_K (their order is our inference)."""
    targets = torch.where(tested.passed, tokens, tested.emit[:-1])
    chosen = [d if match else t for d, t, match in zip(weighed.drafted, weighed.emit, weighed.passed, strict=False)]
    mismatches = [i for i, match in enumerate(weighed.passed) if not match]
    return Block(weighed.drafted, chosen, mismatches, torch.cat([tokens, targets]))


class Blind:
    """Base of arbiters that read no text."""

    def begin(self, prompt: list[int]) -> None: ...

    def read(self, tokens: list[int]) -> None: ...


class Always(Blind):
    """Keeps every drafted token."""

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        return (True for _ in block.mismatches)


class Never(Blind):
    """Keeps none: speculative sampling."""

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        return (False for _ in block.mismatches)


class Random(Blind):
    """Keeps each with the same probability. It shows how much a policy gains over accepting as often at random."""

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        draws: list[float] = torch.rand(len(block.mismatches), generator=rng, device=rng.device).tolist()
        return (draw < self.probability for draw in draws)


class Learned:
    """The trained policy π: keeps a drafted token if σ(logit) > δ (Eq. 17).

    `session` is one of an arbitrator (cospec_arbitrator.py), whose logits [n, 1] are the head's. Its cache holds
    committed tokens only. One forward a round feeds the new ones and the block; then the block is rolled back.
    """

    def __init__(self, session: Session, threshold: float, hybrid: bool = True) -> None:
        self.session, self.hybrid = session, hybrid
        self.least = log_odds(threshold)  # the logit of the threshold δ
        self.unread: list[int] = []

    def begin(self, prompt: list[int]) -> None:
        self.session.restart(prompt)
        self.unread = []

    def read(self, tokens: list[int]) -> None:
        self.unread += tokens

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        for logit in self.logits(block):
            yield logit > self.least

    def logits(self, block: Block) -> list[float]:
        """The logit of each mismatch. Reads the newly committed tokens first, in place."""
        return self.logits_at(block.tokens, block.mismatches)

    def logits_at(self, tokens: Tensor, positions: list[int]) -> list[float]:
        """The logits at some positions of a round's `tokens` [n], which need not be a whole block."""
        width = len(tokens)
        fed = torch.cat([torch.tensor(self.unread, dtype=torch.long, device=self.session.device), tokens])
        scored = self.session.forward(fed, keep=width, together=width if self.hybrid else 0)
        self.session.truncate(len(self.session) - width)
        self.unread = []
        logits: list[float] = scored.logits[:, 0].double()[positions].tolist()
        return logits


def log_odds(probability: float) -> float:
    """ln(P / (1 - P)); infinite for 0 and 1."""
    if 0 < probability < 1:
        return math.log(probability) - math.log1p(-probability)
    return math.copysign(math.inf, probability - 0.5)


class BranchOracle:
    """Finishes both branches of a mismatch and keeps the draft's token unless its branch is worth less (Eq. 6-7).

    Before each prompt it must be given a utility, the worth of a text, which no real method knows.
    """

    def __init__(self) -> None:
        self.utility: Utility | None = None
        self.prompt: list[int] = []
        self.answer: list[int] = []

    def begin(self, prompt: list[int]) -> None:
        self.prompt, self.answer = prompt, []

    def read(self, tokens: list[int]) -> None:
        self.answer = [*self.answer, *tokens]

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        if self.utility is None:
            raise ValueError("the oracle arbiter must be told how answers are scored; only `specbench run` does that")
        for i in block.mismatches:
            before = [*self.answer, *block.drafted[:i]]
            ours, theirs = ([*before, token] for token in (block.drafted[i], block.targets[i]))
            yield self.utility(self.prompt, ours) >= self.utility(self.prompt, theirs)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError for an arbitrator or a backbone that does not fit the pair."""
    arbiter, hashes = build_arbiter(settings, pair, watch)
    return CoSpec(pair.session("target", watch), model_drafter(settings, pair, watch), settings, arbiter, hashes)


def build_arbiter(settings: Settings, pair: Pair, watch: Watch) -> tuple[Arbiter, dict[str, str]]:
    """The arbiter of the settings, and hashes of its files."""
    if settings.arbiter == "trained":

        def load() -> tuple[PreTrainedModel, dict[str, str]]:
            joined = with_backbone(pair, settings.backbone)
            model, head = find_arbitrator(settings.arbitrator, joined)
            return model, head.hashes() | backbone_hash(settings.backbone, joined)

        model, hashes = pair.runtime.once((ROLE, settings.arbitrator, settings.backbone), load)
        session = Session(model, ROLE, watch, 1, derived_runtime(pair.runtime, model), home=pair.device)
        return Learned(session, settings.threshold, settings.mask == "hybrid"), hashes
    chance = probability(settings.arbiter)
    if chance is not None:
        return Random(chance), {}
    others: dict[str, Callable[[], Arbiter]] = {"always": Always, "never": Never, "oracle": BranchOracle}
    return others[settings.arbiter](), {}
