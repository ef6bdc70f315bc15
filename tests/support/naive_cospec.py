"""CoSpec again, slowly, from the paper alone (arXiv 2605.24793, sections 3.1 and 3.3): no cache, nothing of specbench.

Every step reads the whole text again. LoRA is merged into a copy of the backbone by hand, and the hybrid mask is
written out entry by entry.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from oracle import best, next_logits
from transformers import PreTrainedModel

# context, d_1..d_K, t_1..t_K -> of each position a number; what is kept is asked of it at mismatches only
Judge = Callable[[list[int], list[int], list[int]], list[float]]


class Round(NamedTuple):
    """One round: positions count from 0; `rejected` is None where the round ends with the bonus token."""

    drafted: list[int]
    targets: list[int]  # t_1..t_K, given the drafted tokens before each
    bonus: int
    kept: list[int]  # the mismatches that were kept
    rejected: int | None

    @property
    def mismatches(self) -> list[int]:
        return [i for i, (d, t) in enumerate(zip(self.drafted, self.targets, strict=True)) if d != t]

    @property
    def committed(self) -> list[int]:
        if self.rejected is None:
            return [*self.drafted, self.bonus]
        return [*self.drafted[: self.rejected], self.targets[self.rejected]]


def allowed(query: int, key: int, context: int, hybrid: bool, window: int | None = None) -> bool:
    """Whether the token at `query` reads the one at `key`; the block begins at `context` (below Eq. 9).

    Context is causal and never reads the block; the block reads all context and all of itself (`hybrid`), or causally.
    A layer with a window reads no key that is `window` or more positions behind the query; what is ahead is not behind.
    """
    seen = key <= query or (hybrid and query >= context and key >= context)
    return seen and (window is None or query - key < window)


class Merged(NamedTuple):
    """An arbitrator without adapters: the backbone with W + (α / r) B A in the place of W, and the head."""

    backbone: PreTrainedModel
    weight: torch.Tensor  # [D]
    bias: float


def merge(backbone: PreTrainedModel, tensors: Mapping[str, torch.Tensor], rank: int, alpha: float) -> Merged:
    """A merged copy on the CPU; `tensors` are adapters and head by the names under which they are stored."""
    model = copy.deepcopy(backbone).cpu()
    modules = dict(model.named_modules())
    by_name = {name: tensor.detach().cpu().double() for name, tensor in tensors.items()}
    heads = sorted(name for name in by_name if "lora" not in name)
    assert [name.rsplit(".", 1)[1] for name in heads] == ["bias", "weight"], heads
    for name in by_name:
        if ".lora_A." in name:
            place, a, b = name.split(".lora_A.")[0], by_name[name], by_name[name.replace("lora_A", "lora_B")]
            assert a.shape[0] == b.shape[1] == rank
            modules[place].weight.data += (alpha / rank) * (b @ a)
    return Merged(model, by_name[heads[1]][0], float(by_name[heads[0]]))


@torch.no_grad()
def states(model: PreTrainedModel, tokens: list[int], context: int, hybrid: bool = True) -> torch.Tensor:
    """Last hidden states [n, D] of a text whose block begins at `context`, by a forward under the written-out mask."""
    n = len(tokens)

    def additive(window: int | None) -> torch.Tensor:
        rows = [[0.0 if allowed(q, k, context, hybrid, window) else -math.inf for k in range(n)] for q in range(n)]
        return torch.tensor(rows, dtype=torch.float64)[None, None]

    config = model.config
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    mask: object = additive(None)
    if kinds:
        mask = {kind: additive(window if kind == "sliding_attention" else None) for kind in set(kinds)}
    out = model.base_model(
        torch.tensor([tokens]), attention_mask=mask, position_ids=torch.arange(n)[None], use_cache=False
    )
    return out.last_hidden_state[0].double()


def logits(
    arbitrator: Merged, context: list[int], drafted: list[int], targets: list[int], hybrid: bool = True
) -> list[float]:
    """wᵀh + b at each drafted token (Eq. 9-11)."""
    h = states(arbitrator.backbone, [*context, *drafted, *targets], len(context), hybrid)
    return [float(arbitrator.weight @ h[len(context) + i]) + arbitrator.bias for i in range(len(drafted))]


def scan(drafted: list[int], targets: list[int], bonus: int, keep: Callable[[int], bool]) -> Round:
    """Eq. 12-15: matches stand, mismatches are asked about one after the other, up to the first that is not kept."""
    kept: list[int] = []
    for i, (d, t) in enumerate(zip(drafted, targets, strict=True)):
        if d == t:
            continue
        if not keep(i):
            return Round(drafted, targets, bonus, kept, i)
        kept.append(i)
    return Round(drafted, targets, bonus, kept, None)


def worked_out(judge: Judge, threshold: float) -> Callable[[list[int], list[int], list[int]], Callable[[int], bool]]:
    """Eq. 17, with the acceptance probability σ(logit); equality is no acceptance."""

    def begin(context: list[int], drafted: list[int], targets: list[int]) -> Callable[[int], bool]:
        values = judge(context, drafted, targets)
        chances = [1 / (1 + math.exp(-value)) for value in values]
        assert all(abs(chance - threshold) > 1e-5 for chance in chances), "too near the threshold to tell"
        return lambda i: chances[i] > threshold

    return begin


class Models:
    """A target and a draft that always take the likeliest token; what they said once is remembered."""

    def __init__(self, target: PreTrainedModel, draft: PreTrainedModel) -> None:
        self.target, self.draft = (functools.cache(functools.partial(_says, model)) for model in (target, draft))

    def rounds(
        self,
        prompt: list[int],
        count: int,
        gamma: int,
        begin: Callable[[list[int], list[int], list[int]], Callable[[int], bool]],
    ) -> list[Round]:
        """Rounds until at least `count` tokens follow the prompt, the one of the prefill among them.

        `begin` is shown each block that has a mismatch, and says which of them are kept.
        """
        text, done = [*prompt, self.target(tuple(prompt))], []
        while len(text) - len(prompt) < count:
            drafted: list[int] = []
            for _ in range(gamma):
                drafted.append(self.draft((*text, *drafted)))
            *targets, bonus = (self.target((*text, *drafted[:i])) for i in range(gamma + 1))
            keep = begin(text, drafted, targets) if drafted != targets else bool
            done.append(scan(drafted, targets, bonus, keep))
            text = text + done[-1].committed
        return done


def _says(model: PreTrainedModel, text: tuple[int, ...]) -> int:
    return best(next_logits(model, list(text)))
