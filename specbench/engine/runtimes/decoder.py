"""A lean forward over a preallocated cache: no modules, no concatenation, and masks that are built once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.runtimes.parts import Attention, Parts

FEW = 64  # up to so many rows attention is two plain products; for more, a fused kernel saves memory and time


class Cache(NamedTuple):
    """Keys and values of every layer that has attention: [K, capacity, D] of one sequence, [rows, K, …] of several."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]


class ForwardBlock(Protocol):
    """The n tokens of a forward: their positions, where their keys and values go, and what they read."""

    @property
    def places(self) -> slice | Tensor:
        """Their positions [n]."""

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write k and v [n, K, D] into a layer's cache, in place; what queries [n, H, D] read there: [n, H D]."""


@dataclass(frozen=True)
class SequenceBlock:
    """A block of one sequence."""

    rows: slice | Tensor  # the rows of the cache that they fill
    places: slice | Tensor
    reach: int  # how many rows of the cache are read
    masks: dict[int | None, Tensor | None]  # by window: [n, reach], added to scores; None: every token reads all rows

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys[:, self.rows] = k.transpose(0, 1)
        values[:, self.rows] = v.transpose(0, 1)
        k, v, mask = keys[:, : self.reach], values[:, : self.reach], self.masks[layer.window]
        if q.shape[0] <= FEW or layer.softcap:
            return grouped(layer, q, k, v, mask)
        return fused(layer, q, k, v, mask)


def run(
    parts: Parts,
    ids: Tensor,
    step: ForwardBlock,
    cache: Cache,
    angles: tuple[Tensor, Tensor] | None,
    keep: slice | Tensor | None,
    hidden: Sequence[int],
    features: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Logits of the tokens that `keep` selects (None: all), and hidden states [n, …] as in `Runner`.

    Fills the cache, in place.
    """
    h = embedded(parts, ids, step)
    turn = turns(angles, step)
    joined = None
    if parts.join:
        assert features is not None
        joined, h = parts.join(h, features)
    if not hidden:
        for state in through(parts, h, step, cache, turn, joined=joined, keep=keep):
            h = state
        return parts.output(parts.norm(h)), None
    states = [h, *through(parts, h, step, cache, turn, joined=joined)]
    normed = parts.norm(states[-1])
    if parts.normed:
        states[-1] = normed  # as in transformers
    return parts.output(normed if keep is None else normed[keep]), torch.cat([states[i] for i in hidden], -1)


def embedded(parts: Parts, ids: Tensor, step: ForwardBlock) -> Tensor:
    """What enters the first layer [n, width]: the embeddings of tokens, and of their positions if they are learned."""
    h = parts.embed(ids)
    if parts.positions:
        places = step.places
        if isinstance(places, slice):
            places = torch.arange(places.start, places.stop, device=ids.device)
        h = h + parts.positions(places)
    return h


def turns(angles: tuple[Tensor, Tensor] | None, step: ForwardBlock) -> tuple[Tensor, Tensor] | None:
    """Cosines and sines [n, 1, D] of the tokens' positions; None for a model without rotary ones."""
    return None if angles is None else (angles[0][step.places][:, None], angles[1][step.places][:, None])


def through(
    parts: Parts,
    h: Tensor,
    step: ForwardBlock,
    cache: Cache,
    turn: tuple[Tensor, Tensor] | None,
    first: int = 0,
    last: int | None = None,
    joined: Tensor | None = None,
    keep: slice | Tensor | None = None,
) -> Iterator[Tensor]:
    """The states [n, width] that leave the layers `first` … `last` - 1 (None: to the end), which `h` enters.

    Fills their part of the cache, in place. `joined` is the input of the attention where it is not made of `h`. The
    last layer gives only the states that `keep` selects: the other tokens end with their keys and values.
    """
    index = sum(attention is not None for attention, _ in parts.layers[:first])
    layers = parts.layers[first:last]
    for place, (attention, mlp) in enumerate(layers, 1):
        kept = keep if place == len(layers) else None
        x, h = h, h if kept is None else h[kept]
        if attention:
            x = attention.before(x) if joined is None else joined
            x = attend(attention, x, step, cache.keys[index], cache.values[index], turn, kept)
            h = h + attention.after(attention.out(x)) if attention.after else attention.out.joined(x, h, "add")
            index += 1
        if mlp:
            x = mlp.inner(mlp.before(h))
            h = h + mlp.after(mlp.down(x)) if mlp.after else mlp.down.joined(x, h, "add")
        yield h


def attend(
    layer: Attention,
    x: Tensor,
    step: ForwardBlock,
    keys: Tensor,
    values: Tensor,
    turn: tuple[Tensor, Tensor] | None,
    keep: slice | Tensor | None = None,
) -> Tensor:
    """What n tokens [n, width] read, [n, H D], or the rows of it that `keep` selects; it then enters `layer.out`.

    Computed in the type of the cache, and rotated in that of `turn`: cosines and sines [n, 1, D].
    """
    heads, groups, size = layer.heads, layer.groups, layer.size
    qkv = layer.qkv(x).view(-1, heads + 2 * groups, size)
    qk = qkv[:, : heads + groups].to(turn[0].dtype if turn else keys.dtype)
    if layer.q_norm and layer.k_norm:
        qk = torch.cat([layer.q_norm(qk[:, :heads]), layer.k_norm(qk[:, heads:])], 1)
    if turn:
        cos, sin = turn  # the first half of the sines has its sign changed
        qk = torch.addcmul(qk * cos, qk.roll(size // 2, -1), sin)
    qk, v = qk.to(keys.dtype), qkv[:, heads + groups :].to(keys.dtype)
    q, k = qk[:, :heads], qk[:, heads:]
    read = step.attend(layer, q, k, v, keys, values)
    return (read if keep is None else read[keep]).to(x.dtype)


def grouped(layer: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention [n, H D] of queries [n, H, D] over keys and values [K, S, D]; queries that share keys become rows."""
    n, groups, size = q.shape[0], layer.groups, layer.size
    rows = q.view(n, groups, -1, size).permute(1, 2, 0, 3).reshape(groups, -1, size)  # [K, H/K · n, D]
    rows = rows * layer.scale  # before the product, which half precision may not hold unscaled
    if mask is not None:
        mask = mask.repeat(rows.shape[1] // n, 1) if rows.shape[1] != n else mask
    if layer.softcap:
        scores = torch.tanh(torch.bmm(rows, k.transpose(1, 2)) / layer.softcap) * layer.softcap
        scores = scores if mask is None else scores + mask
    elif mask is None:
        scores = torch.bmm(rows, k.transpose(1, 2))
    else:
        scores = torch.baddbmm(mask, rows, k.transpose(1, 2))
    weights = scores.softmax(-1) if scores.element_size() > 2 else scores.softmax(-1, torch.float32).to(v.dtype)
    attended = torch.bmm(weights, v).view(groups, -1, n, size)
    return attended.permute(2, 0, 1, 3).reshape(n, -1)


def fused(layer: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The same as `grouped`, by torch's kernels, for many rows."""
    share = layer.heads // layer.groups
    if share > 1:  # repeated, since not every kernel takes groups together with a mask
        k, v = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)
    q = q.transpose(0, 1)
    attended = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=layer.scale)
    return attended[0].transpose(0, 1).reshape(q.shape[1], -1)


def signed(angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Cosines and sines [P, D] for `attend`: the first half of the sines has its sign changed, as rotation needs."""
    cos, sin = angles
    return cos, torch.cat([-sin[:, : sin.shape[1] // 2], sin[:, sin.shape[1] // 2 :]], -1)
