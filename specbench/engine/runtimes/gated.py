"""The inner part of a gated MLP: act(x Wᵍ) · (x Wᵘ)."""

from typing import Any

from torch import Tensor, nn

from specbench.engine.runtimes.products import Called, Map, packs, product

NAMES = {"SiLUActivation": ("swish", ""), "SiLU": ("swish", ""), "GELUTanh": ("gelu", "tanh")}
NAMES |= {"GELUActivation": ("gelu", "none"), "PytorchGELUTanh": ("gelu", "tanh"), "ReLU": ("relu", "")}


def gated(gate: nn.Module, up: nn.Module, act: Any) -> Map:
    """The inner part of a gated MLP as one map.

    Where oneDNN has the function, it is part of the product: torch's own computes the last numbers of a thread's share
    otherwise than the others, so that a row's bits would depend on how many rows there are.
    """
    name = NAMES.get(type(act).__name__)
    weight = getattr(gate, "weight", None)
    if name and isinstance(weight, Tensor) and packs(weight.device.type, weight.dtype):
        first, second = product([gate]), product([up])
        if not isinstance(first, Called) and not isinstance(second, Called):
            return lambda x: second.joined(x, first(x, name), "mul")
        return lambda x: second.joined(x, act(first(x)), "mul")
    both = product([gate, up])

    def compute(x: Tensor) -> Tensor:
        gate, up = both(x).chunk(2, -1)
        return act(gate) * up

    return compute
