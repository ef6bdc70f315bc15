"""A model whose neighbouring layers attend at the same time: their attention sublayers read one input (EasySpec)."""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.engine.models.layer_skip import decoder_layers, replaced, twin

NORMS = ("input_layernorm", "self_attn_layer_norm")  # before the attention of a layer: most models, OPT


def grouped(layers: int, size: int) -> list[range]:
    """Groups of at most `size` neighbouring layers; the first layer and the last one are alone."""
    inner = [range(first, min(first + size, layers - 1)) for first in range(1, layers - 1, size)]
    return [range(1), *inner, *([range(layers - 1, layers)] if layers > 1 else [])]


def steps(layers: int, size: int) -> int:
    """How many sublayers are computed one after another: in a group one for all attentions, and each MLP."""
    return sum(1 + len(group) for group in grouped(layers, size))


class Entered:
    """What entered the first layer of a group, in this forward."""

    states: Tensor


class First(nn.Module):
    """The norm before the attention of a group's first layer, which keeps what it reads."""

    def __init__(self, norm: nn.Module, entered: Entered) -> None:
        super().__init__()
        self.norm, self.entered = norm, entered

    def forward(self, states: Tensor) -> Any:
        self.entered.states = states
        return self.norm(states)


class Later(First):
    """That of a later layer, which reads what entered the group instead of what reached the layer."""

    def forward(self, states: Tensor) -> Any:
        return self.norm(self.entered.states)


def layer_parallel(model: PreTrainedModel, size: int) -> PreTrainedModel:
    """The model whose layers attend in groups of `size`: every attention of a group reads what entered the group.

    The sums and the MLPs stay in order, so h = h + attention(norm(h_group)), then h = h + mlp(norm(h)). A new object
    over the weights of `model`, which does not change; both fill a cache in the same places. Raises ValueError for
    layers of an unknown form, and for norms that follow the sums.
    """
    layers = list(decoder_layers(model))
    if not all(getattr(layer, "do_layer_norm_before", True) for layer in layers):
        raise ValueError("its norms follow the sums")
    for group in grouped(len(layers), size):
        entered = Entered()
        for index in group:
            layer = layers[index]
            name = next(name for name in NORMS if hasattr(layer, name))
            kind = First if index == group.start else Later
            layers[index] = twin(layer, {name: kind(layer.get_submodule(name), entered)})
    decoder = model.get_decoder()
    path = next(name for name, module in model.named_modules() if module is decoder)
    return replaced(model, path.split("."), twin(decoder, {"layers": nn.ModuleList(layers)}))  # type: ignore[return-value]
