"""Products of a few rows with weights, which are laid out for their device."""

import weakref
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.models.quantize import is_plain

Map = Callable[[Tensor], Tensor]  # [n, …] -> [n, …]

LEAST = 300_000  # multiplications (and two rows) from which on oneDNN pays off: it takes about 9 µs to start
TYPICAL = 8  # rows for which oneDNN lays weights out; other numbers work as well


class Product:
    """x Wᵀ + b, where W [out, in] may be several weights with the same input, stacked."""

    def __init__(self, modules: list[nn.Linear]) -> None:
        self.bias = None if modules[0].bias is None else torch.cat([module.bias for module in modules])
        self.packed: Tensor | None = None
        self.rows = 0  # use `packed` from so many rows on
        weights = [module.weight for module in modules]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0].detach()
        if weight.device.type == "cpu":
            # Stored column by column: torch's product of a single row is up to twice as fast.
            self.weight = weight.t().contiguous().t()
            if weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
                self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL)
                self.rows = max(2, -(-LEAST // weight.numel()))
            return
        self.weight = weight
        if len(weights) > 1:  # the model's own weights become views, so that none is in memory twice
            for module, part in zip(modules, weight.split([module.out_features for module in modules]), strict=True):
                module.weight.data = part

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed is None or x.shape[0] < self.rows:
            return F.linear(x, self.weight, self.bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


_products: weakref.WeakKeyDictionary[nn.Module, Product] = weakref.WeakKeyDictionary()


@torch.no_grad()
def product(modules: list[nn.Module]) -> Map:
    """Linear layers with the same input as one map, with their outputs [n, sum of widths] side by side.

    On a CPU the weights are copied into the layouts in which products with few rows are fastest. On a GPU weights that
    are read together are stacked, in place. Modules that are more than a weight (adapters) are called, and so are those
    with weights in fewer bits.
    """
    if any(type(module) is not nn.Linear or not is_plain(module.weight) for module in modules):
        if len(modules) == 1:
            return modules[0]
        return lambda x: torch.cat([module(x) for module in modules], -1)
    if modules[0] not in _products:  # twins of a model share their linear layers
        _products[modules[0]] = Product(modules)  # type: ignore[arg-type]
    return _products[modules[0]]
