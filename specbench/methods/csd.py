"""CSD: calibrated speculative decoding (arXiv 2604.13634). Lossy.

A rejected draft token is rescued if the pair (draft token, target token) was rejected often before (online correction
memory) and the target finds it likely enough (semantic consistency gating).
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.decoding.accept import weigh
from specbench.decoding.drafters import Drafter, ModelDrafter
from specbench.decoding.session import Session
from specbench.decoding.speculate import speculate
from specbench.decoding.types import Draft, Method, Round, Sampling, Scored, Verdict, Watch
from specbench.memory import find_memory
from specbench.models import Pair

Pairs = Counter[tuple[int, int]]  # (draft token, target token) -> times rejected


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")
    count_threshold: float = Field(ge=0, description="rejections of a pair before it may be rescued (λ); 0: any pair")
    gate_threshold: float = Field(ge=0, le=1, description="least p(draft)/p(target token) of a rescue (τ); 0: no gate")
    online: bool = Field(description="go on counting rejections while decoding")
    exclude_eos: bool = Field(description="never rescue a pair that holds an end token")
    memory: str = Field(description="calibrated counts: a file, `auto` (the one that comes with the pair) or `none`")


class CSD:
    """Speculative sampling whose rejections are looked up in a memory that lives across prompts.

    `counts` is the memory at the start; `reset` goes back to it. `protected` tokens are never part of a rescue.
    """

    lossless = False

    def __init__(
        self,
        target: Session,
        drafter: Drafter,
        settings: Settings,
        counts: Pairs | None = None,
        protected: frozenset[int] = frozenset(),
    ) -> None:
        self.target, self.drafter, self.settings, self.protected = target, drafter, settings, protected
        self.reach = settings.gamma + 1
        self.calibrated: Pairs = Counter(counts or {})
        self.counts: Pairs = Counter(self.calibrated)
        self.log_gate = math.log(settings.gate_threshold) if settings.gate_threshold else -math.inf

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return speculate(self.target, self.drafter, self.accept, self.settings.gamma, prompt, sampling, rng)

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """Algorithm 1: scan the draft; at a mismatch, look up, gate, count, then rescue or stop (Eq. 2-4).

        The gate reads raw logits, so it does not depend on the temperature. At T > 0 a mismatch is a rejection by
        speculative sampling, and the target token is its argmax; a rejected argmax has no pair and stays rejected.
        """
        weighed = weigh(draft, scored, sampling, rng)
        rescued: list[int] = []
        for i, (d, t) in enumerate(zip(weighed.drafted, weighed.targets, strict=True)):
            if weighed.passed[i]:
                continue
            hit = self.counts[d, t] >= self.settings.count_threshold
            gate = weighed.gaps[i] >= self.log_gate
            if self.settings.online and d != t:
                self.counts[d, t] += 1
            if not (hit and gate) or d == t or self.protected & {d, t}:
                return weighed.verdict(i, tuple(rescued))
            rescued.append(i)
        return weighed.verdict(len(weighed.drafted), tuple(rescued))

    def inputs(self) -> dict[str, str]:
        counts = repr(sorted(self.calibrated.items())).encode()
        return {"memory": hashlib.sha256(counts).hexdigest()[:16]} if self.calibrated else {}

    def reset(self) -> None:
        self.counts = Counter(self.calibrated)

    def state(self) -> Any:
        """The counts that were added since calibration, as [draft token, target token, count]."""
        return sorted([d, t, n] for (d, t), n in (self.counts - self.calibrated).items())

    def restore(self, state: Any) -> None:
        self.counts = self.calibrated + Counter({(d, t): n for d, t, n in state})


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return CSD(
        pair.session("target", watch),
        ModelDrafter(pair.session("draft", watch)),
        settings,
        find_memory(settings.memory, pair),
        pair.eos_ids if settings.exclude_eos else frozenset(),
    )
