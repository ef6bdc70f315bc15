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


def shapes(pair: Pair) -> dict[str, tuple[int, ...]]:
    """What a head for the pair's draft model holds; -1: any number of blocks."""
    width = hidden_size(pair.models["draft"])
    return {
        "blocks.weight": (-1, width, width),
        "blocks.bias": (-1, width),
        "out.weight": (2, width),
        "out.bias": (2,),
    }


def acceptance_head(head: Head, device: torch.device) -> AcceptanceHead:
    """The head of a file, float32 as in the official code. Raises UserError where its blocks and depth disagree."""
    blocks, out = (
        [head.tensors[f"{layer}.{kind}"].to(device) for kind in ("weight", "bias")] for layer in ("blocks", "out")
    )
    try:
        return AcceptanceHead(blocks[0], blocks[1], out[0], out[1], int(head.trained["depth"]))
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"the head for {KIND} is damaged ({error}); train it anew") from None


def lengths(settings: Settings, pair: Pair) -> Lengths:
    pair.session("draft")  # a pair without a draft model is refused in its words
    head = find_head(settings.head, KIND, pair, shapes(pair), "draft")
    loaded = acceptance_head(head, pair.models["draft"].device)
    return Predicted(loaded, settings.threshold, settings.shortest, head.hashes())


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return adaptive(settings, lengths(settings, pair), pair, watch)
