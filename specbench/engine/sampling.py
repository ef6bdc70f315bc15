"""From logits to tokens: temperature, top-k, top-p and min-p; draws; the residual of speculative sampling.

No other file applies temperature, top-k, top-p or min-p.
"""

import torch
from torch import Tensor

from specbench.engine.types import Best, Sampling


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution [..., V] that tokens are drawn from, by logits [..., V]: temperature, then top-k, top-p, min-p.

    Min-p keeps the tokens that are at least so likely as that share of the likeliest (Nguyen et al., arXiv 2407.01082).
    Half precision is widened to float32 first. Greedy sampling does not use this: see `draw`.
    """
    scaled = wide(logits) / sampling.temperature
    if 0 < sampling.top_k < scaled.shape[-1]:
        kth = scaled.topk(sampling.top_k).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth, -torch.inf)
    probs = scaled.softmax(-1)
    if sampling.top_p < 1:
        # Keep the smallest set of the likeliest tokens whose mass reaches top_p.
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        outside = ordered.cumsum(-1) - ordered >= sampling.top_p
        probs = probs.masked_fill(outside.scatter(-1, order, outside), 0.0)
    if sampling.min_p:
        probs = probs.masked_fill(probs < sampling.min_p * probs.amax(-1, keepdim=True), 0.0)
    if sampling.top_p < 1 or sampling.min_p:
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def draw(logits: Tensor, sampling: Sampling, rng: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """A token for each row of logits [n, V]: ids [n], and the distributions [n, V] (None when greedy)."""
    if sampling.greedy:
        return logits.argmax(-1), None
    probs = probabilities(logits, sampling)
    return pick(probs, rng), probs


def likeliest(logits: Tensor) -> Best:
    """The likeliest token of each row of logits [n, V], which numpy can read where they are."""
    rows = (logits.detach() if logits.requires_grad else logits).numpy()
    return Best(logits, rows, rows.argmax(-1).tolist())


def pick(probs: Tensor, rng: torch.Generator) -> Tensor:
    """One token id from each distribution [n, V] (which need not be normalised), without a host round trip.

    Of independent exponential waiting times with rates `probs`, that of token i is the smallest with probability
    ∝ probs[i].
    """
    return earliest(probs, waits(probs, rng))


def waits(like: Tensor, rng: torch.Generator) -> Tensor:
    """Independent waiting times of rate 1, of the shape and type of `like`.

    A wait of exactly 0, which a device's generator may round to, would let any token win, even an impossible one; the
    clamp replaces it by the middle of the interval that rounds to 0.
    """
    return torch.empty_like(like).exponential_(generator=rng).clamp_(min=torch.finfo(like.dtype).eps / 4)


def earliest(probs: Tensor, waited: Tensor) -> Tensor:
    """The token id [n] that comes first if tokens come at rates `probs` [n, V]; `waited` [n, V] are waits of rate 1."""
    return (probs / waited).argmax(-1)


def leads(waited: Tensor, sampling: Sampling) -> Tensor:
    """What each token's wait of rate 1 adds to its logit: the token with the highest sum [n, V] is the `earliest`.

    T > 0, without cuts.
    """
    return waited.log().mul_(-sampling.temperature)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """(p - q)₊, unnormalised, rows [n, V]; p itself where nothing is left (p = q up to rounding)."""
    rest = (p - q).clamp_(min=0)
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)


def wide(logits: Tensor) -> Tensor:
    """Half precision as float32; other types unchanged."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
