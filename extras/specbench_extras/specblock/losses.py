"""The losses of SpecBlock's drafter: a slot counts after a valid prefix alone, and ranks are ordered classes.

The forms are those of the official code (arXiv 2605.07243), which the sheet of the paper names. Logits are [..., K, V],
K slots of any number of blocks; what has no last axis is [..., K].
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from specbench_extras.specblock.rank_block_head import BOUNDS, CLASSES


def valid_prefix(right: Tensor) -> Tensor:
    """Where all slots before a slot are right; the first slot always has such a prefix."""
    return F.pad(right[..., :-1], (1, 0), value=True).cumprod(-1).bool()


def draft_losses(logits: Tensor, taught: Tensor, right: Tensor, counted: Tensor) -> Tensor:
    """For each slot [K] the mean cross-entropy with the target's distribution, which `taught` are the logits of.

    The mean is over the counted places whose slots before are all right; 0 if there are none.
    """
    kept = counted & valid_prefix(right)
    losses = -(taught.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    blocks = tuple(range(losses.dim() - 1))
    return (losses * kept).sum(blocks) / kept.sum(blocks).clamp(min=1)


def rank_classes(logits: Tensor, wanted: Tensor) -> Tensor:
    """The class of a token's rank in logits: 0 for rank 1, then 2 to 4, 5 to 10, and beyond."""
    above = (logits > logits.gather(-1, wanted[..., None])).sum(-1)
    return torch.bucketize(above, torch.tensor(BOUNDS, device=above.device), right=True)


def distance(wanted: Tensor, said: Tensor) -> Tensor:
    """1 + |t - c| + max(t - c, 0) of classes t and c: to expect the token higher than it is costs twice as much."""
    gap = (wanted - said).float()
    return 1 + gap.abs() + gap.clamp(min=0)


def rank_loss(scores: Tensor, classes: Tensor, counted: Tensor, budget: float) -> Tensor:
    """The rank head's loss, by its scores [..., K, CLASSES]: a weighted mean over the slots up to its first mistake.

    The cross-entropy is with soft labels, 1 / d(t, c)² over their sum, and weighs d(t, the head's choice), where d is
    the `distance`. A class that n places of a slot have weighs min(1, budget / n).
    """
    choice = scores.argmax(-1)
    reached = counted & valid_prefix((choice == classes) | ~counted)
    labels = distance(classes[..., None], torch.arange(CLASSES, device=scores.device)) ** -2
    soft = labels / labels.sum(-1, keepdim=True)
    losses = -(soft * scores.float().log_softmax(-1)).sum(-1) * distance(classes, choice)
    weights = reached.float()
    if budget:
        met = F.one_hot(classes, CLASSES) * reached[..., None]  # [..., K, CLASSES]
        counts = met.sum(tuple(range(met.dim() - 2)))  # [K, CLASSES]
        weights = weights * (met * (budget / counts.clamp(min=1)).clamp(max=1)).sum(-1)
    return (losses * weights).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
