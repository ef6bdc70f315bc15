"""CSD: calibrated speculative decoding (arXiv 2604.13634). Lossy.

A rejected draft token is rescued if the pair (draft token, target token) was often rejected before (online correction
memory) and the target finds the draft token likely enough (semantic consistency gating).
"""

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from pydantic import Field

from specbench.engine.accept import Weighed, weigh
from specbench.engine.drafters import Drafter
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Verdict, Watch
from specbench.methods.drafting import DraftedMethod, DraftSettings, model_drafter
from specbench.methods.lossy.csd_memory import Memory, find_memory

OFTEN = {"at_least": operator.ge, "more_than": operator.gt}


class Settings(DraftSettings):
    count_threshold: float = Field(ge=0, description="rejections of a pair before it may be rescued (λ); 0: any pair")
    count_test: Literal["at_least", "more_than"] = Field(description="how a count is compared with λ")
    gate_threshold: float = Field(ge=0, le=1, description="least p(draft)/p(target token) of a rescue (τ); 0: no gate")
    online: bool = Field(description="go on counting rejections while decoding")
    count_rescued: bool = Field(description="count a pair also where it is rescued")
    exclude_eos: bool = Field(description="never rescue a pair that contains an end token")
    memory: str = Field(description="calibrated counts: a file or folder, `auto` (what comes with the pair) or `none`")
    calibration: Literal["task-specific", "universal", "others"] = Field(
        description="which memory of a folder serves a task; others: those of all other tasks"
    )
    calibration_size: int = Field(ge=0, description="calibration documents of each task that count; 0: all there are")


class CSD(DraftedMethod):
    """Speculative sampling whose rejections are looked up in a memory that lasts across the prompts of a task.

    `memory` holds the counts at the start of each task. Counts made while decoding are kept separately, in `learned`,
    and `reset` forgets them. `protected` tokens are never part of a rescue.
    """

    penalised = True
    lossless = False
    rescues = True

    def __init__(
        self,
        target: Session,
        drafter: Drafter,
        settings: Settings,
        memory: Memory | None = None,
        protected: frozenset[int] = frozenset(),
    ) -> None:
        self.target, self.drafter, self.settings, self.protected = target, drafter, settings, protected
        self.gamma, self.reach = settings.gamma, settings.gamma + 1
        self.memory = memory or Memory({})
        self.doc_hashes = self.memory.doc_hashes
        self.calibrated = self.memory.of("")
        self.learned: Counter[tuple[int, int]] = Counter()
        self.counted: list[tuple[int, tuple[int, int]]] = []  # of this round: position in the draft, pair
        self.log_gate = math.log(settings.gate_threshold) if settings.gate_threshold else -math.inf
        self.often = OFTEN[settings.count_test]

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        self.counted = []
        return super().rounds(prompt, sampling, rng)

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        return self.rescue_or_stop(weigh(draft, scored, sampling, rng))

    def rescue_or_stop(self, weighed: Weighed) -> Verdict:
        """Algorithm 1: scan the draft; at a mismatch, look up, gate, count, then rescue or stop (Eq. 2-4).

        A pair is counted while `online`; a rescued one only with `count_rescued`.

        The gate reads raw logits, so it does not depend on the temperature. At T > 0 a mismatch is a rejection by
        speculative sampling, and the target token t is the argmax, not the drawn correction (our inference: the paper
        decodes greedily, where the two tokens are the same); a rejected argmax has no pair and stays rejected.
        """

        rescued: list[int] = []
        self.counted = []
        for i in weighed.mismatches:
            d, t = weighed.drafted[i], weighed.targets[i]
            hit = self.often(self.count(d, t), self.settings.count_threshold)
            gate = weighed.gaps[i] >= self.log_gate
            rescue = hit and gate and d != t and not self.protected & {d, t}
            if self.settings.online and d != t and (self.settings.count_rescued or not rescue):
                self.learned[d, t] += 1
                self.counted.append((i, (d, t)))
            if not rescue or weighed.excluded(i):
                return weighed.verdict(i, tuple(rescued))
            rescued.append(i)
        return weighed.verdict(len(weighed.drafted), tuple(rescued))

    def ended(self, last: Round) -> None:
        """Take back the pairs of mismatches whose position the end of the text cut off, as calibration does."""
        self.learned -= Counter(pair for i, pair in self.counted if i >= len(last.tokens))
        self.counted = []

    def count(self, draft_token: int, target_token: int) -> int:
        """How often the pair was rejected, in calibration and in this task so far."""
        pair = draft_token, target_token
        return self.calibrated.get(pair, 0) + self.learned.get(pair, 0)

    def inputs(self) -> dict[str, str]:
        return {**super().inputs(), **self.memory.hashes()}

    def lacking(self, task: str) -> str:
        return lacking(self.memory.of(task), self.memory.size(task), self.settings)

    def reset(self, task: str = "") -> None:
        super().reset(task)
        self.calibrated = self.memory.of(task)
        self.learned = Counter()

    def state(self) -> Any:
        """The counts of this task so far, as [draft token, target token, count], and the state of the length policy."""
        return [sorted([d, t, n] for (d, t), n in self.learned.items()), super().state()]

    def restore(self, state: Any) -> None:
        counts, lengths = state
        self.learned = Counter({(d, t): n for d, t, n in counts})
        super().restore(lengths)

    def added(self, state: Any, before: Any, after: Any) -> Any:
        if after[1] is not None:
            raise ValueError("what its length policy learns from text to text cannot be added up")
        counts, old, new = (Counter({(d, t): n for d, t, n in each[0]}) for each in (state, before, after))
        counts.update(new)
        counts.subtract(old)
        return [sorted([d, t, n] for (d, t), n in counts.items() if n), None]


def lacking(pairs: Mapping[tuple[int, int], int], documents: int, settings: Settings) -> str:
    """Why no pair of a memory can be rescued, and how many documents might be needed; empty if one can be.

    `documents`: how many the counts are of; 0 if that is not known.
    """
    most, threshold = max(pairs.values(), default=0), settings.count_threshold
    if OFTEN[settings.count_test](most, threshold):
        return ""
    until = ", until it has counted enough of them while it decodes" if settings.online else ""
    alike = f"csd decodes as sps does{until}"
    if not pairs:
        return f"no rejections have been counted beforehand: {alike}"
    least = math.ceil(threshold) if settings.count_test == "at_least" else math.floor(threshold) + 1
    rate = f"; at this rate the first one would take {math.ceil(documents * least / most)} documents" * bool(documents)
    of = f" of {documents} documents" * bool(documents)
    return (
        f"no pair was rejected {least} times, as count_threshold {threshold:g} asks: {alike}. The "
        f"{sum(pairs.values())} rejections{of} are of {len(pairs)} pairs, {most} of the most frequent one{rate}"
    )


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return CSD(
        pair.session("target", watch),
        model_drafter(settings, pair, watch),
        settings,
        find_memory(settings.memory, settings.calibration, pair, settings.calibration_size),
        pair.eos_ids if settings.exclude_eos else frozenset(),
    )
