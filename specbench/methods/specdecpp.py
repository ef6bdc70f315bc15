"""SpecDec++: a trained head says how likely the draft's tokens are to be accepted (arXiv 2405.19715). Lossless.

The draft goes on until the chance that some token is rejected exceeds a threshold, which is the form that the best
policy has (Theorem 4.3).
"""

import torch
from pydantic import Field

from specbench.config import UserError
from specbench.decoding.acceptance import AcceptanceHead
from specbench.decoding.lengths import Lengths, Predicted
from specbench.decoding.types import Method, Watch
from specbench.heads import Head, find_head, hidden_size
from specbench.methods.drafting import Stopping
from specbench.methods.sps import adaptive
from specbench.models import Pair

KIND = "specdecpp"


class Settings(Stopping):
    threshold: float = Field(gt=0, lt=1, description="a draft ends where P(some token is rejected) is more (h)")
    head: str = Field(description="trained head: a file, or `auto` (the one that ships with the pair)")


# What a head file holds; -1: any number of blocks, and of inputs, which are checked against the draft model below.
SHAPES = {"blocks.weight": (-1, -1, -1), "blocks.bias": (-1, -1), "out.weight": (2, -1), "out.bias": (2,)}


def acceptance_head(head: Head, device: torch.device) -> AcceptanceHead:
    """The head of a file, float32 as in the official code. Raises UserError where its tensors and depth disagree."""
    blocks, out = (
        [head.tensors[f"{layer}.{kind}"].to(device) for kind in ("weight", "bias")] for layer in ("blocks", "out")
    )
    count, inputs = blocks[1].shape
    try:
        if blocks[0].shape != (count, inputs, inputs) or out[0].shape[1] != inputs:
            raise ValueError("its layers do not fit together")
        return AcceptanceHead(blocks[0], blocks[1], out[0], out[1], int(head.trained["depth"]))
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"the head for {KIND} is damaged ({error}); train it anew") from None


def lengths(settings: Settings, pair: Pair) -> Lengths:
    draft = pair.session("draft").model  # a pair without a draft model is refused in its words
    head = find_head(settings.head, KIND, pair, SHAPES, "draft")
    loaded = acceptance_head(head, draft.device)
    more = loaded.out_weight.shape[1] - hidden_size(draft)
    if more not in (0, 1):
        raise UserError(f"the head for {KIND} reads {more:+d} values beside the draft model's state; train it anew")
    return Predicted(loaded, settings.threshold, settings.shortest, head.hashes(), confident=more == 1)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return adaptive(settings, lengths(settings, pair), pair, watch)
