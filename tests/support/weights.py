"""Weights of tiny heads: as they go into a file, as a second implementation reads them, and stirred."""

from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)
# What every head has a few of, as new ones have them: norms of ones, and what mixes or asks evenly.
EVEN = ("norm", "fusion", "queries")


def stored(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model, as a file gives them back."""
    return {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The same in float64, for an implementation that reads them by their names."""
    return {name: tensor.double() for name, tensor in stored(model).items()}


def stirred(model: Model, seed: int = 0) -> Model:
    """The model with other norms, in place: norms that do nothing would hide where they stand."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in EVEN):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng).to(parameter.device))
    return model
