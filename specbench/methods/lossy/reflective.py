"""Reflective verification (arXiv 2505.18629). Lossy.

The target reads the draft twice in one forward; a prompt between the two asks it to correct itself. The logits of both
readings are fused, and the draft is verified against the fused logits as in speculative sampling.
"""

from collections.abc import Iterator, Sequence

import torch
from pydantic import Field
from torch import Tensor

from specbench.engine.accept import exact
from specbench.engine.drafters import Drafter
from specbench.engine.ids import to_device
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.speculate import read_once, speculate
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Watch
from specbench.methods.drafting import DraftedMethod, DraftSettings, model_drafter


class Settings(DraftSettings):
    alpha: float = Field(ge=0, le=1, description="weight of the second reading (α); 0: speculative sampling")
    prompt: str = Field(description='reflective prompt between the readings; "" with a weight of 0: no second reading')
    prefix_tokens: int = Field(ge=0, description="last committed tokens repeated before the second reading")


class Reflective(DraftedMethod):
    """Speculative sampling on fused logits. `prompt` is the tokenised reflective prompt, without special tokens."""

    lossless = False
    rescues = True

    def __init__(self, target: Session, drafter: Drafter, settings: Settings, prompt: Sequence[int]) -> None:
        self.target, self.drafter, self.settings = target, drafter, settings
        self.prompt = torch.tensor(prompt, dtype=torch.int64, device=target.device)
        self.reflects = len(prompt) > 0 or settings.alpha > 0
        self.reach = settings.gamma + 1
        if self.reflects:
            self.reach += len(prompt) + settings.prefix_tokens + settings.gamma

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        gamma, recent = self.settings.gamma, max(1, self.settings.prefix_tokens)
        score = self.read_twice if self.reflects else read_once
        return speculate(self.target, self.drafter, exact, gamma, prompt, sampling, rng, score, recent)

    def read_twice(self, target: Session, recent: Sequence[int], draft: Draft, hidden: Sequence[int] = ()) -> Scored:
        """One forward over [last, d_1..K, reflective prompt, position prefix, d_1..K]: fused logits [K + 1, V].

        The position prefix, the end of the verified text, shows the target where its second reading begins. Positions
        simply continue after the first reading (our inference). The cache is cut back to the end of the first reading.
        """
        shown = to_device(recent, target.device)
        prefix = shown[max(0, shown.shape[0] - self.settings.prefix_tokens) :]
        first = torch.cat([shown[-1:], draft.tokens])
        second = torch.cat([self.prompt, prefix, draft.tokens])
        logits = target.forward(torch.cat([first, second])).logits
        target.truncate(len(target) - second.shape[0])
        count = draft.tokens.shape[0]
        return Scored(fuse(logits, count, self.settings.alpha), original=logits[:count])


def fuse(logits: Tensor, count: int, alpha: float) -> Tensor:
    """z = (1 - α) z⁰ + α zʳ for a block that begins and ends with the same K = `count` draft tokens.

    `logits` [n, V] are those after one token and the block; row i of z⁰ and of zʳ predicts draft token i. Returns
    [K + 1, V], at least in float32. The last row, of the bonus token, is z⁰ alone (our inference).
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    original = logits[: count + 1].to(wide)
    reflected = logits[-count - 1 : -1].to(wide)
    return torch.cat([(1 - alpha) * original[:count] + alpha * reflected, original[count:]])


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    prompt = pair.tokenizer(settings.prompt, add_special_tokens=False)["input_ids"]
    drafter = model_drafter(settings, pair, watch)
    return Reflective(pair.session("target", watch), drafter, settings, prompt)
