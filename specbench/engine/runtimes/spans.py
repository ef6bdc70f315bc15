"""The two products of attention over a cache on a CPU: of queries with keys, and of weights with values.

A row has the same bits whatever rows are computed with it, and however many keys follow those that it reads: values are
added up span by span. In half precision the products are in the type of the cache, and spans are added up in float32.
Scores are rounded after a number near their maximum is subtracted within the product, so those that count lose least.
"""

import functools

import torch
from torch import Tensor

from specbench.engine.runtimes.products import packs

SPAN = 128  # positions whose values are added up in one product
EVERY = 8  # of so many keys one is looked at for what is subtracted from a row's scores
LEAST = -10000.0  # of that, where none of them is read
SMALL = 2**15  # numbers of keys or values; copying so many takes less time than a product
TOGETHER = 2**19  # numbers of spans that are computed at once and then added up; so many stay in a processor's cache


@functools.cache
def multiplies(device: str, dtype: torch.dtype) -> bool:
    """True if a processor has products of a type in half precision. These read denormal numbers as zeros."""
    if dtype.itemsize != 2 or not packs(device, dtype):
        return False
    tiny, large = torch.full((8, 64), 2.0**-130, dtype=dtype), torch.full((64, 64), 2.0**100, dtype=dtype)
    return not torch.mm(tiny, large).any()


def in_halves(cached: Tensor) -> bool:
    return cached.dtype.itemsize == 2 and cached.device.type == "cpu"


def scored(rows: Tensor, keys: Tensor, scale: float, mask: Tensor | None = None, level: Tensor | None = None) -> Tensor:
    """`scale` times rows [B, M, D] times keys [B, S, D], plus a mask that is broadcast to [M, S]: [B, M, S].

    In half precision on a CPU minus a `level` [B, M, 1].
    """
    if not in_halves(keys):
        beta, mask = (0, rows[0, :1, :1]) if mask is None else (1, mask)
        return torch.baddbmm(mask, rows, keys.transpose(1, 2), beta=beta, alpha=scale)
    added = rows.new_zeros(keys.shape[1]) if mask is None else mask
    scores = added - (rows.new_zeros(*rows.shape[:2], 1) if level is None else level)
    if keys[0].numel() < SMALL:
        return scores.baddbmm_(rows, keys.transpose(1, 2), alpha=scale)
    for score, row, key in zip(scores, rows, keys, strict=True):  # one product of all copies a part of a cache
        score.addmm_(row, key.t(), alpha=scale)
    return scores


def level_of(scores: Tensor) -> Tensor:
    """What is subtracted from scores, by the scores [B, M, S] of some keys, -inf if not read: [B, M, 1]."""
    return scores.amax(-1, keepdim=True).clamp_(min=LEAST)


def summed(weights: Tensor, values: Tensor, reach: int, span: int = SPAN) -> Tensor:
    """The first `reach` > 0 values [B, S, D] times weights [B, M, S], one span after the other: [B, M, D].

    In float32 where they are in half precision on a CPU.
    """
    first = min(span, reach)
    if not in_halves(values):
        total, begin = torch.bmm(weights[..., :first], values[:, :first]), first
    else:
        total, begin = torch.bmm(weights[..., :first], values[:, :first]).float(), first
        most = max(1, TOGETHER // total.numel()) * span
        while begin + span <= reach and values.shape[2] * reach >= SMALL:
            end = min(begin + most, reach // span * span)
            for product in _products(weights[..., begin:end], values[:, begin:end], span).unbind(1):
                total += product
            begin = end
    for start in range(begin, reach, span):
        end = min(start + span, reach)
        total += torch.bmm(weights[..., start:end], values[:, start:end])
    return total


def _products(weights: Tensor, values: Tensor, span: int) -> Tensor:
    """values [B, n · span, D] times weights [B, M, n · span], of each span: [B, n, M, D] in float32."""
    count = values.shape[1] // span
    products = weights.new_empty(weights.shape[0], count, weights.shape[1], values.shape[2])
    for product, weight, value in zip(products, weights, values, strict=True):
        torch.bmm(weight.unflatten(1, (count, span)).transpose(0, 1), value.unflatten(0, (count, span)), out=product)
    return products.float()
