"""The inner part of a gated MLP: act(x Wᵍ) · (x Wᵘ)."""

from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.models.quantize import is_plain
from specbench.engine.runtimes.products import SMALL, Map, Product, packs, product

NAMES = {"SiLUActivation": ("swish", ""), "SiLU": ("swish", ""), "GELUTanh": ("gelu", "tanh")}
NAMES |= {"GELUActivation": ("gelu", "none"), "PytorchGELUTanh": ("gelu", "tanh"), "ReLU": ("relu", "")}

SHARE = 2**15  # numbers; torch computes so many by one thread


def gated(gate: nn.Module, up: nn.Module, act: Any) -> Map:
    """The inner part of a gated MLP as one map, whose bits for a row do not depend on the other rows on a CPU.

    In large products oneDNN computes the function. Torch's own computes the last numbers of a thread's share otherwise
    than the others, so it is given few enough rows at a time for one thread.
    """
    name = NAMES.get(type(act).__name__)
    weight = getattr(gate, "weight", None)
    packed = isinstance(weight, Tensor) and packs(weight.device.type, weight.dtype)
    if name and packed and isinstance(weight, Tensor) and is_plain(weight) and weight.numel() >= SMALL:
        first, second = product([gate]), product([up])
        if isinstance(first, Product) and isinstance(second, Product):
            return lambda x: second.joined(x, first(x, name), "mul")
    both = product([gate, up])

    def compute(x: Tensor) -> Tensor:
        gate, up = both(x).chunk(2, -1)
        if packed and gate.numel() > SHARE:
            gate = torch.cat([act(rows) for rows in gate.split(max(1, SHARE // gate.shape[1]))])
            return gate.mul_(up)
        return act(gate) * up

    return compute
