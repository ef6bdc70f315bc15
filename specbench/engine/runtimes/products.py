"""Products of a few rows with weights, which are laid out for their device, and the gated MLP made of them."""

import functools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.models.identity import is_plain

Map = Callable[[Tensor], Tensor]  # [n, …] -> [n, …]

TYPICAL = 8  # rows for which oneDNN lays weights out; other numbers work as well
PACKED = (torch.float32, torch.bfloat16)  # types that oneDNN may compute in on a CPU
SMALL = 2**19  # weights; below, a sum after the product takes less time than oneDNN's sum within it
TRIED = 8  # rows by which it is tried whether a row alone is computed as among others
FUNCTIONS = {"SiLUActivation": ("swish", ""), "SiLU": ("swish", ""), "GELUTanh": ("gelu", "tanh")}
FUNCTIONS |= {"GELUActivation": ("gelu", "none"), "PytorchGELUTanh": ("gelu", "tanh"), "ReLU": ("relu", "")}
SHARE = 2**15  # numbers; torch computes so many by one thread


class Product:
    """x Wᵀ + b, where W [out, in] may be several weights with the same input, stacked.

    On a CPU a row's result has the same bits whatever other rows are computed with it, where oneDNN's kernels allow.
    Weights in half precision are widened where the processor has no products of their type, since torch's own take many
    times as long. The result is rounded to the weights' type either way.
    """

    def __init__(self, modules: list[nn.Linear]) -> None:
        self.bias = None if modules[0].bias is None else torch.cat([module.bias for module in modules])
        self.packed: Tensor | None = None
        self.type: torch.dtype | None = None  # in which products are computed; the result has the weights' own
        self.small = False
        self.alone = False  # a single row is computed as it is; else as two, since kernels for one row add up otherwise
        weights = [module.weight for module in modules]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0].detach()
        if weight.device.type == "cpu":
            self.small = weight.numel() < SMALL
            self.type = computed_in("cpu", weight.dtype)
            if self.type:
                wide = weight.to(self.type)
                self.packed = torch.ops.mkldnn._reorder_linear_weight(wide, TYPICAL)
                self.alone = _same_alone(self.packed, wide)
                self.bias = None if self.bias is None else self.bias.detach().to(self.type)
            else:  # stored column by column: torch's product of a single row is up to twice as fast
                self.weight = weight.t().contiguous().t()
            return
        self.weight = weight
        if len(weights) > 1:  # the model's own weights become views, so that none is in memory twice
            for module, part in zip(modules, weight.split([module.out_features for module in modules]), strict=True):
                module.weight.data = part

    def __call__(self, x: Tensor, function: tuple[str, str] = ("none", "")) -> Tensor:
        """The product [n, out] of rows [n, in], then one of oneDNN's functions where the weight is `packed`."""
        if self.packed is None:
            return F.linear(x, self.weight, self.bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            self._fed(x), self.packed, self.bias, function[0], [], function[1]
        )
        return (y if len(y) == len(x) else y[:1]).to(x.dtype)

    def joined(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        """The product [n, out] of rows [n, in], which is added to `other` [n, out] ("add") or multiplies it ("mul")."""
        if self.packed is None or self.small:
            return other + self(x) if how == "add" else other * self(x)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            self._fed(x), self._fed(other), self.packed, self.bias, how
        )
        return (y if len(y) == len(x) else y[:1]).to(x.dtype)

    def _fed(self, x: Tensor) -> Tensor:
        """Rows as the kernel reads them; a single one comes twice where it would be computed otherwise alone."""
        alone = x.shape[0] == 1 and not self.alone
        return (x.expand(2, -1) if alone else x).to(self.type)


class Apart(ABC):
    """What stands in place of a `Product` where nothing more is computed within the product."""

    packed = None

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """The product [n, out] of rows [n, in]."""

    def joined(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        return other + self(x) if how == "add" else other * self(x)


class Called(Apart):
    """A module, or several with the same input."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self.modules = modules

    def __call__(self, x: Tensor) -> Tensor:
        if len(self.modules) == 1:
            y: Tensor = self.modules[0](x)
            return y
        return torch.cat([module(x) for module in self.modules], -1)


class FewBits(Apart):
    """x Wᵀ + b, where W [out, in] is in fewer bits, of one layer or of several with the same input, stacked."""

    def __init__(self, modules: list[nn.Module], times: Map) -> None:
        """`times` is the product without b."""
        self.times = times
        self.bias = None if modules[0].bias is None else torch.cat([module.bias for module in modules])  # type: ignore[misc]

    def __call__(self, x: Tensor) -> Tensor:
        y = self.times(x)
        return y if self.bias is None else y + self.bias


@functools.cache
def packs(device: str, dtype: torch.dtype) -> bool:
    """True if oneDNN computes products of a type on a device; bfloat16 on a CPU needs avx512."""
    if device != "cpu" or dtype not in PACKED or not torch.backends.mkldnn.is_available():
        return False
    try:
        torch.ops.mkldnn._reorder_linear_weight(torch.zeros(16, 16, dtype=dtype), TYPICAL)
    except RuntimeError:
        return False
    return True


def computed_in(device: str, dtype: torch.dtype) -> torch.dtype | None:
    """The type in which oneDNN computes products with weights of a type: its own, else float32 for half precision.

    None where it computes none: on another device, or in float64.
    """
    if packs(device, dtype):
        return dtype
    native = dtype == torch.float16 and torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return torch.float32 if dtype.itemsize == 2 and not native and packs(device, torch.float32) else None


def _same_alone(packed: Tensor, weight: Tensor) -> bool:
    """True if a row's product has the same bits alone as among others; that depends on the shape only.

    What the rounding of the result hides is seen in what is left when the result is subtracted within the product.
    """
    key = (*weight.shape, weight.dtype, torch.get_num_threads())
    if key not in _alone:
        rows = torch.randn(TRIED, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
        rounded = -torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")
        pointwise = torch.ops.mkldnn._linear_pointwise.binary
        among = pointwise(rows, rounded, packed, None, "add")
        alone = [pointwise(*pair, packed, None, "add") for pair in zip(rows.split(1), rounded.split(1), strict=True)]
        _alone[key] = torch.equal(torch.cat(alone), among)
    return _alone[key]


_alone: dict[tuple[object, ...], bool] = {}
_products: weakref.WeakKeyDictionary[nn.Module, Product | FewBits] = weakref.WeakKeyDictionary()


@torch.no_grad()
def product(modules: list[nn.Module]) -> Product | Apart:
    """Linear layers with the same input as one map, with their outputs [n, sum of widths] side by side.

    On a CPU the weights are copied into the layout in which products with few rows are fastest. On a GPU weights that
    are read together are stacked, in place. Modules that are more than a weight (adapters) are called, and so are those
    with weights in fewer bits that are not packed alike.
    """
    if any(type(module) is not nn.Linear for module in modules):
        return Called(modules)
    if not all(is_plain(module.weight) for module in modules):  # type: ignore[arg-type]
        return _of_fewer_bits(modules)
    if modules[0] not in _products:  # twins of a model share their linear layers
        _products[modules[0]] = Product(modules)  # type: ignore[arg-type]
    return _products[modules[0]]


def _of_fewer_bits(modules: list[nn.Module]) -> Product | Apart:
    from specbench.engine.models.packed import Packed, multiplied, stacked

    packed = all(isinstance(module.weight, Packed) for module in modules)
    if packed and modules[0] not in _products and (parts := stacked([module.weight for module in modules])):  # type: ignore[misc]
        _products[modules[0]] = FewBits(modules, lambda x: multiplied(x, *parts))
    return (_products.get(modules[0]) if packed else None) or Called(modules)


def gated(gate: nn.Module, up: nn.Module, act: Any) -> Map:
    """The inner part of a gated MLP as one map, whose bits for a row do not depend on the other rows on a CPU.

    In large products oneDNN computes the function. Torch's own computes the last numbers of a thread's share otherwise
    than the others, so it is given few enough rows at a time for one thread.
    """
    name = FUNCTIONS.get(type(act).__name__)
    weight = getattr(gate, "weight", None)
    packed = isinstance(weight, Tensor) and computed_in(weight.device.type, weight.dtype)
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
