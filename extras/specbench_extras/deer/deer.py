"""DEER: a block drafter that reads the text alone, and none of the target's states (arXiv 2512.15176). Lossless.

The paper drafts with a diffusion model of text that fills all masks in one step. Here it is a head of a few layers with
the target's embedding and output layer. It decodes as DFlash does, but for what it reads.
"""

import torch
from torch import Tensor

from specbench.engine.ids import to_device
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.session import Session
from specbench.engine.types import Method, Watch
from specbench.methods.blocks.dflash import DFlash, Settings, SlotDrafter, block_of, loaded
from specbench_extras.deer.head import KIND

__all__ = ["Settings", "build"]


class TextDrafter(SlotDrafter):
    """Drafts by a head that reads the committed tokens itself."""

    @torch.inference_mode()
    def begin(self, prompt: list[int]) -> None:
        self.session.truncate(0)
        self.session.forward(prompt, features=self.features(prompt))

    def features(self, tokens: list[int]) -> Tensor:
        return self.head.features(to_device(tokens, self.session.device), states=None)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for a head that does not fit it, and for too large a block."""
    model, hashes = loaded(settings.head, pair, KIND)
    block = block_of(settings, model, pair, KIND)
    session = Session(model, "draft", watch, pair.vocabulary, EAGER)
    return DFlash(pair.session("target", watch), TextDrafter(model, session, block, settings.proposal), hashes)
