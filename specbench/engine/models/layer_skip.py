"""A model with fewer sublayers over the same weights, which drafts for the whole model (Draft & Verify, SWIFT)."""

import copy
import functools
from collections.abc import Collection, Mapping
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.engine.models.identity import has_more_than_keys


class Form(NamedTuple):
    """The parts of a decoder layer that have weights, by sublayer: h + attention(h), then h + mlp(h).

    The norms of a sublayer are inside its residual branch, before or after its computation, and are skipped with it.
    """

    attention: tuple[str, ...]
    mlp: tuple[str, ...]


FORMS = (
    Form(("self_attn", "input_layernorm"), ("mlp", "post_attention_layernorm")),  # Llama, Qwen, Mistral, Gemma, Phi 3
    Form(  # Gemma 2 and 3
        ("self_attn", "input_layernorm", "post_attention_layernorm"),
        ("mlp", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
    Form(("self_attn", "self_attn_layer_norm"), ("fc1", "fc2", "final_layer_norm")),  # OPT
)


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of a model. Raises ValueError if their form is unknown, so that none can be skipped."""
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ValueError("it has no list of decoder layers")
    if getattr(model.config.get_text_config(), "num_kv_shared_layers", None):
        raise ValueError("its layers share keys and values")
    if has_more_than_keys(model):
        raise ValueError("its layers cache more than keys and values")
    for layer in layers:
        _form(layer)
    return layers


def without(model: PreTrainedModel, attention: Collection[int], mlp: Collection[int]) -> PreTrainedModel:
    """The model without the attention sublayers and the MLP sublayers of some layers, counted from 0.

    A new object over the weights of `model`, which does not change; only a few dictionaries are copied. Skipped
    sublayers compute nothing. The others fill the cache without gaps, as its layers 0, 1, …, so each such model needs
    its own cache (a `Session`). Raises ValueError for layers of an unknown form.
    """
    kept = 0
    layers = []
    for index, layer in enumerate(decoder_layers(model)):
        form = _form(layer)
        parts: dict[str, nn.Module] = {}
        if index in attention:
            parts |= _skipped(form.attention, layer)
        else:
            attention_part = twin(layer.get_submodule("self_attn"), {})
            vars(attention_part)["layer_idx"] = kept
            parts["self_attn"] = attention_part
            kept += 1
        if index in mlp:
            parts |= _skipped(form.mlp, layer)
        layers.append(twin(layer, parts))
    decoder = model.get_decoder()
    path = next(name for name, module in model.named_modules() if module is decoder)
    return replaced(model, path.split("."), twin(decoder, {"layers": nn.ModuleList(layers)}))  # type: ignore[return-value]


def _form(layer: nn.Module) -> Form:
    weighted = {name for name, part in layer.named_children() if next(part.parameters(), None) is not None}
    for form in FORMS:
        if weighted == {*form.attention, *form.mlp}:
            return form
    raise ValueError(f"its layers ({type(layer).__name__}) have an unknown form")


def _skipped(parts: tuple[str, ...], layer: nn.Module) -> dict[str, nn.Module]:
    """The modules that replace the parts of a sublayer, so that it adds nothing to the residual stream."""
    # OPT may have its norms after the residual sum, outside the branch; then they stay.
    norms_stay = not getattr(layer, "do_layer_norm_before", True)
    replacements: dict[str, nn.Module] = {}
    for part in parts:
        if part == "self_attn":
            replacements[part] = NoAttention()
        elif part in ("mlp", "fc2"):
            replacements[part] = NoOutput(_gives_scores(layer.get_submodule(part)))
        elif not (norms_stay and "norm" in part):
            replacements[part] = nn.Identity()
    return replacements


class NoAttention(nn.Module):
    """An attention whose output is 0."""

    skipped = True

    def forward(self, hidden_states: Tensor, **others: Any) -> tuple[Tensor, None]:
        return torch.zeros_like(hidden_states), None


class NoOutput(nn.Module):
    """A layer whose output is 0; with `scores`, those of a router, there are none next to it."""

    skipped = True

    def __init__(self, scores: bool = False) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, hidden_states: Tensor) -> Tensor | tuple[Tensor, None]:
        nothing = torch.zeros_like(hidden_states)
        return (nothing, None) if self.scores else nothing


@torch.inference_mode()
def _gives_scores(mlp: nn.Module) -> bool:
    """True if an MLP gives its router's scores next to its output, as GPT-OSS's does; a token of zeros tells."""
    gain = getattr(getattr(mlp, "router", None), "weight", None)
    if gain is None:
        return False
    return isinstance(mlp(torch.zeros(1, 1, gain.shape[-1], dtype=gain.dtype, device=gain.device)), tuple)


def replaced(module: nn.Module, path: list[str], part: nn.Module) -> nn.Module:
    """A twin of a module with another part at `path`."""
    name, *rest = path
    return twin(module, {name: replaced(module.get_submodule(name), rest, part) if rest else part})


def twin(module: nn.Module, parts: Mapping[str, nn.Module]) -> nn.Module:
    """Another module over the same weights, with some other parts. Setting its attributes does not change `module`."""
    twin = copy.copy(module)
    attributes: dict[str, Any] = vars(twin)
    for name, value in vars(module).items():
        if isinstance(value, dict):  # parameters, buffers, parts, hooks: copy the dictionary, not what it holds
            attributes[name] = value.copy()
        elif isinstance(value, MethodType) and value.__self__ is module:
            attributes[name] = MethodType(value.__func__, twin)
        elif isinstance(value, functools.partial) and value.args[:1] == (module,):
            # accelerate puts such a `forward` on the modules of a model that is spread over devices.
            attributes[name] = functools.partial(value.func, twin, *value.args[1:], **value.keywords)
    attributes["_modules"].update(parts)
    return twin
