"""Drafts of one target that resemble it in different ways."""

import copy

import oracle
import torch


def relatives(count: int):
    """A target and drafts that resemble it in different ways."""
    target, draft = oracle.tiny_pair("llama")
    rng = torch.Generator().manual_seed(5)
    drafts = [draft]
    for _ in range(count - 1):
        drafts.append(copy.deepcopy(target))
        for _, parameter in sorted(drafts[-1].named_parameters()):
            parameter.add_(0.02 * parameter.std() * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    return target, drafts
