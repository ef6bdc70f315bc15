"""Products of a few rows with weights, laid out for what they run on."""

import weakref
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]  # [n, …] -> [n, …]

LEAST = 300_000  # multiplications from which on oneDNN pays, which takes about 9 µs before it begins; and two rows
TYPICAL = 8  # rows that oneDNN is told to expect; others work as well


class Product:
    """x Wᵀ + b, where W [out, in] may be several weights of one input, one below the other."""

    def __init__(self, modules: list[nn.Linear]) -> None:
        self.bias = None if modules[0].bias is None else torch.cat([module.bias for module in modules])
        self.packed: Tensor | None = None
        self.rows = 0  # from so many on
        weights = [module.weight for module in modules]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0].detach()
        if weight.device.type == "cpu":
            # Column by column, torch's product reads a row's weights up to twice as fast.
            self.weight = weight.t().contiguous().t()
            if weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
                self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL)
                self.rows = max(2, -(-LEAST // weight.numel()))
            return
        self.weight = weight
        if len(weights) > 1:  # not twice in the device's memory: the model's own become views
            for module, part in zip(modules, weight.split([module.out_features for module in modules]), strict=True):
                module.weight.data = part

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed is None or x.shape[0] < self.rows:
            return F.linear(x, self.weight, self.bias)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return found


_known: weakref.WeakKeyDictionary[nn.Module, Product] = weakref.WeakKeyDictionary()


@torch.no_grad()
def product(modules: list[nn.Module]) -> Map:
    """Linear layers of one input as one map, their outputs [n, sum of widths] side by side.

    On a CPU the weights are copied into the layouts in which products with few rows are fastest; on a GPU weights that
    are read together are laid side by side in place. Modules that are more than a weight (adapters) are called.
    """
    if any(type(module) is not nn.Linear for module in modules):
        if len(modules) == 1:
            return modules[0]
        return lambda x: torch.cat([module(x) for module in modules], -1)
    if modules[0] not in _known:  # twins of a model have their linear layers in common
        _known[modules[0]] = Product(modules)  # type: ignore[arg-type]
    return _known[modules[0]]
