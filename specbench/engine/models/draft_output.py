"""Lighter output layers for a draft model, over the same weights: fewer tokens (VocabTrim), or a lower rank (SlimSpec).

A round's γ draft forwards are small, and with a large vocabulary the output layer is most of each. Verification is the
same, so a lighter layer can only lose acceptance.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.engine.models.layer_skip import replaced


class Output(NamedTuple):
    """A model with another output layer, and the hashes of the files that the layer was made from, by name."""

    model: PreTrainedModel
    hashes: Mapping[str, str]


def trimmed(model: PreTrainedModel, tokens: Tensor) -> PreTrainedModel:
    """The model with only the output rows of `tokens` (ids [N], each once); the logits of all others are -inf.

    A new object over the weights of `model`, which does not change; the N rows are copied. Logits keep their width, so
    ids keep their meaning. Raises ValueError if the output layer cannot be changed. (VocabTrim, arXiv 2506.22694.)
    """
    whole = output_layer(model)
    kept = tokens.to(whole.weight.device)
    width = whole.weight.shape[0]
    bias = None if whole.bias is None else whole.bias[kept]

    def widen(module: nn.Module, args: Any, out: Any) -> Any:
        # After the model, not in its output layer: some models bound their logits afterwards, even -inf.
        few = out.logits
        out.logits = few.new_full((*few.shape[:-1], width), -torch.inf).index_copy_(-1, kept, few)
        return out

    twin = with_output(model, linear(whole.weight[kept], bias))
    twin.register_forward_hook(widen)
    return twin


def slim(model: PreTrainedModel, rank: int) -> PreTrainedModel:
    """The model with the best output layer of a rank: W ≈ (W V) Vᵀ, V its leading right singular vectors [D, r].

    A new object over the weights of `model`, which does not change. The factors are computed in float64. SlimSpec
    (arXiv 2605.10453) learns its factors; these are the best ones without training. Raises ValueError if the output
    layer cannot be changed, or has no such rank.
    """
    whole = output_layer(model)
    if not 1 <= rank <= whole.weight.shape[1]:
        raise ValueError(f"its output layer has rank {whole.weight.shape[1]} at most, and at least 1")
    weight = whole.weight.detach().double()
    # Eigenvectors of WᵀW, in rising order: it is [D, D], while W has a row for every token.
    leading = torch.linalg.eigh(weight.T @ weight).eigenvectors[:, -rank:]
    kind = whole.weight.dtype
    down, up = linear(leading.T.to(kind), None), linear((weight @ leading).to(kind), whole.bias)
    return with_output(model, nn.Sequential(down, up))


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with this weight [out, in]. No memory is taken for an initial weight."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def output_layer(model: PreTrainedModel) -> nn.Linear:
    """The layer that computes the logits. Raises ValueError if it is not a linear one."""
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        raise ValueError(f"{type(model).__name__} has no linear output layer")
    return layer


def with_output(model: PreTrainedModel, layer: nn.Module) -> PreTrainedModel:
    """A twin of the model with another output layer."""
    old = output_layer(model)
    path = next(name for name, module in model.named_modules() if module is old)
    return replaced(model, path.split("."), layer)  # type: ignore[return-value]
