"""Lighter output layers for a draft model, over the same weights: fewer tokens (VocabTrim), or a lower rank (SlimSpec).

A round's γ draft forwards are small, and with a large vocabulary most of each is its output layer. The verification is
untouched, so whatever these lose, they lose in acceptance alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.decoding.layer_skip import replaced


class Output(NamedTuple):
    """A model with another output layer, and hashes of what that was made from, by name."""

    model: PreTrainedModel
    hashes: Mapping[str, str]


def trimmed(model: PreTrainedModel, tokens: Tensor) -> PreTrainedModel:
    """The model with only the output rows of `tokens` (ids [N], each once); the logits of all others are -inf.

    A new object over the weights of `model`, which stays as it is; the N rows are copied. Logits keep their width, so
    that ids mean what they meant. ValueError: no output layer that could be changed (VocabTrim, arXiv 2506.22694).
    """
    whole = output_layer(model)
    kept = tokens.to(whole.weight.device)
    width = whole.weight.shape[0]
    bias = None if whole.bias is None else whole.bias[kept]

    def widen(module: nn.Module, given: Any, out: Any) -> Any:
        # Behind the model and not in its output layer: some models bound their logits afterwards, -inf too.
        few = out.logits
        out.logits = few.new_full((*few.shape[:-1], width), -torch.inf).index_copy_(-1, kept, few)
        return out

    found = with_output(model, linear(whole.weight[kept], bias))
    found.register_forward_hook(widen)
    return found


def slim(model: PreTrainedModel, rank: int) -> PreTrainedModel:
    """The model with the best output layer of a rank: W ≈ (W V) Vᵀ, V its leading right singular vectors [D, r].

    A new object over the weights of `model`, which stays as it is. The factors are found in float64. SlimSpec (arXiv
    2605.10453) learns its factors; these are the best that there are without training. ValueError: no output layer that
    could be changed, or no such rank.
    """
    whole = output_layer(model)
    if not 1 <= rank <= whole.weight.shape[1]:
        raise ValueError(f"its output layer has rank {whole.weight.shape[1]} at most, and at least 1")
    weight = whole.weight.detach().double()
    # Eigenvectors of WᵀW in rising order: of a matrix [D, D], where W itself has a row for every token.
    leading = torch.linalg.eigh(weight.T @ weight).eigenvectors[:, -rank:]
    kind = whole.weight.dtype
    down, up = linear(leading.T.to(kind), None), linear((weight @ leading).to(kind), whole.bias)
    return with_output(model, nn.Sequential(down, up))


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with this weight [out, in], without room for another in between."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return made


def output_layer(model: PreTrainedModel) -> nn.Linear:
    """The layer that gives the logits. ValueError if it is not a linear one."""
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        raise ValueError(f"{type(model).__name__} has no linear output layer")
    return layer


def with_output(model: PreTrainedModel, layer: nn.Module) -> PreTrainedModel:
    """A twin of the model, with another output layer."""
    old = output_layer(model)
    path = next(name for name, module in model.named_modules() if module is old)
    return replaced(model, path.split("."), layer)  # type: ignore[return-value]
