"""Where a lossless method's greedy text differs from standard decoding: a numeric tie, or a bug?

Forwards of different widths round differently, so in low precision two nearly equal logits may swap. The reference's
logits at the first differing token decide: it is a tie if both tokens are within rounding of the highest logit. It is
never a tie if one text is only the beginning of the other, or if the runtime computes a token alike in every block.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.base.console import warn
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import probabilities
from specbench.engine.types import Combination, Method, Sampling
from specbench.plan import Plan

# The largest gap between the top two logits that rounding can overturn, by dtype. Our estimate: some units in the last
# place of the logits of common models (norms and attention compute in float32 even in a float64 model).
TIES = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


@dataclass(frozen=True)
class Divergence:
    at: int  # index of the first differing token of the text
    gap: float  # between the highest logit there and the lower one of the two tokens
    kind: str  # "tie" or "bug"


class Reference:
    """What a lossless method reproduces: the target, or the combination of models that decode together."""

    def __init__(self, pair: Pair, combination: Combination | None) -> None:
        self.pair, self.combination = pair, combination

    @property
    def roles(self) -> tuple[str, ...]:
        """The models that it computes with."""
        return self.pair.collaboration if self.combination else ("target",)

    def expected(self, logits: Mapping[str, Tensor], sampling: Sampling) -> Tensor:
        """The distributions [n, V] that tokens follow, from logits [n, V] by role.

        If greedy, scores [n, V] in units of logits, whose argmax is the token.
        """
        if self.combination is None:
            return logits["target"] if sampling.greedy else probabilities(logits["target"], sampling)
        rows = [self.combination.rows(logits[role], sampling) for role in self.roles]
        combined = self.combination.combined(rows, sampling)
        return combined.log() if sampling.greedy and self.combination.level == "probabilities" else combined

    def scores(self, prompt: list[int], answer: list[int]) -> Tensor:
        """Greedy scores [V] of the token that follows the beginning of an answer, by a fresh forward of every model."""
        logits = {}
        for role in self.roles:
            session = self.pair.session(role)
            session.truncate(0)
            session.prompt_length = len(prompt)  # for penalties
            logits[role] = session.forward([*prompt, *answer], keep=1).logits.double()
        return self.expected(logits, Sampling())[-1]

    @property
    def rounds(self) -> bool:
        """True if forwards of different widths may round differently, so that nearly equal logits may swap."""
        return not self.pair.runtime.equal(self.pair.models["target"])

    @property
    def tie(self) -> float:
        """The largest gap of two logits that rounding can overturn."""
        target = self.pair.models["target"]
        return max(TIES[target.dtype], self.pair.runtime.tie(target))


def diverged(reference: Reference, prompt: list[int], vanilla: list[int], tokens: list[int]) -> Divergence | None:
    """The first difference between a method's greedy tokens and those of standard decoding; None if they agree."""
    if tokens == vanilla:
        return None
    pairs = enumerate(zip(vanilla, tokens, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(vanilla), len(tokens)))
    logits = reference.scores(prompt, vanilla[:at])
    chosen = [text[at] for text in (vanilla, tokens) if at < len(text)]
    gap = float(logits.max() - logits[chosen].min()) if len(chosen) == 2 else float("inf")
    return Divergence(at, gap, "tie" if reference.rounds and gap <= reference.tie else "bug")


def mark_divergence(
    samples: list[dict[str, Any]], methods: dict[str, Method], plan: Plan, pair: Pair, prompts: Mapping[str, Any]
) -> None:
    """Add to the samples of lossless methods, in place, where they differ from a lossless baseline's greedy text.

    `prompts` are token ids by method. Texts after different prompts (in a conversation, after answers that differed
    already) are not compared.
    """
    decoded = {s["method"]: s for s in samples if not s["warmup"] and s["finish"] != "error"}
    for name, sample in decoded.items():
        base = plan.against(name)
        if base is None or base == name or base not in decoded:
            continue
        method, baseline = methods[name], methods[base]
        if not (method.lossless and baseline.lossless) or method.combination != baseline.combination:
            continue
        if prompts[name] != prompts[base]:
            continue
        try:
            reference = Reference(pair, method.combination)
            divergence = diverged(reference, prompts[name], decoded[base]["tokens"], sample["tokens"])
        except Exception as error:  # of the models; the texts are kept
            warn(f"{sample['task']}, document {sample['doc_id']}: {name} could not be compared with {base}: {error}")
            continue
        if divergence:
            sample |= {"diverged_at": divergence.at, "divergence_gap": divergence.gap, "divergence": divergence.kind}
