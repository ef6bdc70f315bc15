"""Heads of specbench as transformers' own generation takes them."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel, PreTrainedModel
from transformers.modeling_layers import MtpModel

from specbench.engine.models.block_head import BlockHead
from specbench.engine.models.eagle_head import STORED


def dflash_assistant(head: BlockHead, mask: int) -> MuseGlimmerAssistantModel:
    """A head as the drafter of transformers' DFlash; `mask` is the token whose embedding is the head's mask."""
    sizes = {name: getattr(head.config, name) for name in (*STORED, "hidden_size", "intermediate_size")}
    config = MuseGlimmerAssistantConfig(
        **sizes,
        num_hidden_layers=len(head.layers),
        layer_types=["full_attention"] * len(head.layers),
        block_size=head.block,
        mask_token_id=mask,
        target_layer_ids=list(head.layers_read),
    )
    made = MuseGlimmerAssistantModel(config).to(head.dtype).eval()
    names = {"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}
    tensors = {name: tensor for name, tensor in head.state_dict().items() if name != "mask"}
    for old, new in names.items():
        tensors = {new + name[len(old) :] if name.startswith(old) else name: one for name, one in tensors.items()}
    made.load_state_dict(tensors)
    return made


def with_mask(target: PreTrainedModel, head: BlockHead, mask: int) -> PreTrainedModel:
    """A copy of a target that embeds the token `mask` as the head's mask, and says it as before."""
    target = copy.deepcopy(target)
    output, words = target.get_output_embeddings(), target.get_input_embeddings()
    with torch.no_grad():
        output.weight = nn.Parameter(output.weight.clone(), requires_grad=False)
        words.weight[mask] = head.mask
    return target


@contextmanager
def handed(modules: Any) -> Iterator[None]:
    """Let `generate(use_mtp=True)` draft with modules that are loaded already."""
    kept = vars(MtpModel)["from_pretrained"]
    MtpModel.from_pretrained = lambda *_, **__: modules  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        MtpModel.from_pretrained = kept  # type: ignore[method-assign]


@contextmanager
def noted(kind: type[Any], matches: list[int]) -> Iterator[None]:
    """Note how many drafts each round of transformers' generation accepted, as its generator of drafts is told.

    The first two notes are from before anything was drafted; the last round's is not told.
    """
    propose = kind.get_candidates

    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        matches.append(kwargs["n_last_matches"])
        return propose(self, *args, **kwargs)

    kind.get_candidates = told
    try:
        yield
    finally:
        kind.get_candidates = propose
