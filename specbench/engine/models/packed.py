"""Weights in 8 or 4 bits on a CPU, by torch's own kernels: nothing to install.

int8 has a scale for each output, symmetric. int4 has a scale and a zero point for each group of inputs, so that 16
levels span exactly the range of the group. A group that lies on 16 levels already, as one of a GGUF file in Q4_0, Q4_1
or Q4_K does, is kept on them, but for the rounding of scales.
Activations are rounded to bfloat16 where they enter a product, and sums are in float32: the kernels for other types are
no faster than weights in float.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 16  # of a number in 4 bits; the kernel takes 8 for the zero point
ON_LEVEL, FARTHEST = 0.01, 0.2  # of a step: how near a number is to its level, next to rounding; and the most with it
TINY = torch.finfo(torch.float32).tiny
AT_ONCE = 4  # rows that torch's kernels compute together
LARGE = 2**19  # numbers of a weight; the product of a smaller one takes less time than a further call
BLOCK = 64  # outputs; torch lays so many of int4 out together, or half of it
TRIED = 64  # outputs by which it is tried whether a weight lies on levels
GROUPS = (32, 64, 128, 256)  # inputs that share a scale: those that torch's kernel has, the most faithful first


class Packed(Tensor):
    """A weight [out, in] as `numbers` in fewer bits and their `scales`; it can only be multiplied, by F.linear."""

    numbers: Tensor
    scales: Tensor
    group: int | None  # None: int8
    computed_bytes = 2  # of a number that enters a product: it is rounded to bfloat16

    @staticmethod
    def __new__(
        cls, numbers: Tensor, scales: Tensor, group: int | None, shape: torch.Size, dtype: torch.dtype
    ) -> "Packed":
        made: Packed = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=numbers.device)  # type: ignore[attr-defined]
        made.numbers, made.scales, made.group = numbers, scales, group
        return made

    def __init__(self, *parts: Any) -> None:
        pass

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return f"Packed({tuple(self.shape)}, {'int4' if self.group else 'int8'})"

    def __tensor_flatten__(self) -> tuple[list[str], tuple[Any, ...]]:
        return ["numbers", "scales"], (self.group, self.shape, self.dtype)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.linear:
            return _product(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            weight = args[0]
            return Packed(weight.numbers, weight.scales, weight.group, weight.shape, weight.dtype)
        raise NotImplementedError(f"weights in fewer bits are only multiplied; {func} is not possible")


def _product(x: Tensor, weight: Packed, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b in the type of x [..., in]."""
    y = multiplied(x.reshape(-1, x.shape[-1]), weight.numbers, weight.scales, weight.group)
    return (y if bias is None else y + bias).view(*x.shape[:-1], -1)


def multiplied(rows: Tensor, numbers: Tensor, scales: Tensor, group: int | None) -> Tensor:
    """Rows [n, in] times a packed weight, [n, out] in their type. A row has the same bits among any others.

    The kernels compute four rows at a time. int4's takes less time for fewer as the first rows of a call, but not as
    its last.
    """
    few = rows.to(torch.bfloat16).contiguous()
    rest = len(few) % AT_ONCE
    if group and len(few) > AT_ONCE and rest in (1, 2) and numbers.numel() >= LARGE:
        y = torch.cat([_multiplied(part, numbers, scales, group) for part in (few[:-rest], few[-rest:])])
    else:
        y = _multiplied(few, numbers, scales, group)
    return y.to(rows.dtype)


def _multiplied(rows: Tensor, numbers: Tensor, scales: Tensor, group: int | None) -> Tensor:
    if group:
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, numbers, group, scales)
        return y
    return torch._weight_int8pack_mm(rows, numbers, scales)


def stacked(weights: Sequence[Packed]) -> tuple[Tensor, Tensor, int | None] | None:
    """Packed weights with the same inputs as one, for `multiplied`: numbers, scales and group; None if they do not fit.

    int4's numbers lie in blocks of outputs.
    """
    group = weights[0].group
    if any(weight.group != group for weight in weights):
        return None
    if group and any(weight.shape[0] % BLOCK for weight in weights[:-1]):
        return None
    numbers = torch.cat([weight.numbers for weight in weights])
    return numbers, torch.cat([weight.scales for weight in weights], 1 if group else 0), group


def pack(layer: nn.Linear, group: int | None) -> None:
    """Put a packed weight in the place of a linear layer's own: int4 in groups of inputs, int8 without a group."""
    weight = layer.weight.detach()
    numbers, scales = int4(weight, group) if group else int8(weight)
    if group:
        numbers = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
    packed = Packed(numbers, scales, group, weight.shape, weight.dtype)
    layer.weight = nn.Parameter(packed, requires_grad=False)


def int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers [out, in] and scales [out] in bfloat16: weight ≈ numbers × scale."""
    scales = (weight.float().abs().amax(1) / 127).to(torch.bfloat16)
    safe = scales.float().clamp(min=TINY)
    return (weight.float() / safe[:, None]).round().clamp(-127, 127).to(torch.int8), scales


def int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Numbers [out, in] from 0 to 15, and [in / group, out, 2] scales and zero points in bfloat16, as the kernel reads
    them: weight ≈ (number - 8) × scale + zero point.
    """
    parts = weight.float().view(weight.shape[0], -1, group)
    low, high = parts.amin(2), parts.amax(2)
    if on_levels(weight, group):
        steps, _ = _steps(parts, low, high, torch.finfo(weight.dtype).eps)
    else:
        steps = torch.full_like(low, LEVELS - 1)
    scales = ((high - low) / steps).to(torch.bfloat16)
    zeros = (low + LEVELS // 2 * scales.float()).to(torch.bfloat16)
    safe = scales.float().clamp(min=TINY)
    numbers = ((parts - zeros.float()[..., None]) / safe[..., None] + LEVELS // 2).round().clamp(0, LEVELS - 1)
    return numbers.to(torch.int32).view(weight.shape), torch.stack([scales, zeros], 2).transpose(0, 1).contiguous()


def on_levels(weight: Tensor, group: int) -> bool:
    """True if most groups of inputs of a weight [out, in] have at most 16 levels, at equal distances."""
    some = weight.detach()[:TRIED].float().view(-1, 1, group)
    _, found = _steps(some, some.amin(2), some.amax(2), torch.finfo(weight.dtype).eps)
    return bool(found.float().mean() > 0.5)


def _steps(parts: Tensor, low: Tensor, high: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
    """How many steps the range of each group [out, groups] of numbers [out, groups, group] has, and where it is known.

    The most that put every number on a level, but for the rounding of numbers; LEVELS - 1 where none do.
    """
    steps, left = torch.full_like(low, LEVELS - 1), torch.ones_like(low, dtype=torch.bool)
    for count in range(LEVELS - 1, 0, -1):
        at = left.nonzero(as_tuple=True)
        least, most = low[at], high[at]
        step = ((most - least) / count).clamp(min=TINY)
        places = (parts[at] - least[:, None]) / step[:, None]
        near = (ON_LEVEL + rounding * torch.maximum(least.abs(), most.abs()) / step).clamp(max=FARTHEST)
        fits = (places - places.round()).abs().amax(1) < near
        found = tuple(index[fits] for index in at)
        steps[found], left[found] = count, False
    return steps, ~left
