"""The file of an EAGLE-3 head: read to go on with, and written after training."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.models.eagle_head import EagleHead, layers_read, stored_settings
from specbench.engine.models.heads import find_head
from specbench.methods.heads.eagle3 import KIND, SHAPES, check_target, eagle_head
from specbench.training.heads import to_learn
from specbench.training.train import Job


def earlier_head(job: Job) -> tuple[EagleHead, str]:
    """The head that a training goes on with, so that it learns, and its hash: --warm-up, or that of the method.

    Raises UserError if there is none, or if it does not fit the pair's target.
    """
    earlier = find_head(job.begins_with, KIND, job.pair, SHAPES)
    head = eagle_head(earlier, check_target(job.pair), job.pair.vocabulary)
    weights = {name: tensor for name, tensor in earlier.tensors.items() if name != "d2t"}
    return to_learn(head, weights), earlier.hashes()["head"]


def tensors_of(head: EagleHead) -> dict[str, Tensor]:
    """The head's weights by their released names, and d2t."""
    ids = head.ids.cpu()
    return {**head.state_dict(), "d2t": ids - torch.arange(len(ids))}


def describe(head: EagleHead, target: PreTrainedModel) -> dict[str, Any]:
    """What the file says of the head itself."""
    layers = list(layers_read(target))
    return {"draft_vocabulary": len(head.ids), "config": stored_settings(head.config), "layers": layers}
