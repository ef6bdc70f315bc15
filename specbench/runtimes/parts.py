"""What a transformers decoder is made of, read once, so that a forward needs no calls of modules.

Llama and Mistral, Qwen 2 and 3, Gemma 1 and 2, OPT. Also their twins: with sublayers skipped, with another output
layer, or with adapters, whose modules are then called as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.decoding.layer_skip import NoAttention, NoOutput
from specbench.eagle_head import EagleHead
from specbench.runtimes.products import Map, product
from specbench.runtimes.types import Unsupported

KNOWN = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "OPT")  # and ForCausalLM
ROPE = ("default", "linear", "llama3", "yarn")  # whose angles depend on the position alone


@dataclass(frozen=True)
class Attention:
    """Of H query and K key-value heads of D values each."""

    before: Map
    qkv: Map  # [n, width] -> [n, (H + 2K) D]
    heads: int  # H
    groups: int  # K
    size: int  # D
    q_norm: Map | None
    k_norm: Map | None
    scale: float
    softcap: float | None
    window: int | None  # a token reads the last so many, itself among them
    out: Map
    after: Map | None


@dataclass(frozen=True)
class Mlp:
    before: Map
    compute: Map
    after: Map | None


@dataclass(frozen=True)
class Parts:
    """A decoder: embed, then h + attention(h) and h + mlp(h) in each layer, then norm and output.

    An EAGLE head reads features beside its tokens: `beside` makes of both what its attention reads, its residual branch
    begins with the features, and its last hidden state is told in front of the norm.
    """

    embed: Map  # ids [n] -> [n, width]
    positions: Map | None  # places [n] -> [n, width], where positions are learned
    rotary: Callable[[int], tuple[Tensor, Tensor]] | None  # P -> cosines and sines [P, D] of the first P places
    layers: Sequence[tuple[Attention | None, Mlp | None]]  # None: skipped
    norm: Map
    output: Map
    beside: Callable[[Tensor, Tensor], Tensor] | None = None  # of a head: what it reads, of embeddings and features

    @property
    def attentions(self) -> list[Attention]:
        return [attention for attention, _ in self.layers if attention]


def read(model: PreTrainedModel) -> Parts:
    """The parts of a model, its weights laid out by `product`. Raises Unsupported where its form is not known.

    They hold the model's modules, not the model: it can be let go.
    """
    if isinstance(model, EagleHead):
        return _head(model)
    kind = type(model).__name__
    if kind.removesuffix("ForCausalLM") not in KNOWN:
        raise Unsupported(f"the static runtime does not know {kind}; use --runtime eager")
    if len(set(getattr(model, "hf_device_map", {"": 0}).values())) > 1:
        raise Unsupported("the static runtime runs a model on one device, and this one is spread; use --runtime eager")
    config, decoder = model.config.get_text_config(), model.get_decoder()
    try:
        layers = [(_attention(layer, config), _mlp(layer)) for layer in decoder.layers]
    except (AttributeError, ValueError) as error:
        raise Unsupported(f"the static runtime cannot read {kind}: {error}; use --runtime eager") from None
    if not any(attention for attention, _ in layers):
        raise Unsupported("the static runtime needs a layer with attention; use --runtime eager")
    if kind == "OPTForCausalLM":
        if decoder.project_in is not None or decoder.final_layer_norm is None:
            raise Unsupported("the static runtime reads OPT models with norms in front only; use --runtime eager")
        table = decoder.embed_positions
        offset, weight = table.offset, table.weight
        return Parts(
            decoder.embed_tokens,
            lambda places: F.embedding(places + offset, weight),
            None,
            layers,
            _norm(decoder.final_layer_norm),
            _output(model),
        )
    rotary = decoder.rotary_emb
    if getattr(rotary, "rope_type", "default") not in ROPE:
        raise Unsupported(f"the static runtime has no positions of kind {rotary.rope_type}; use --runtime eager")
    return Parts(
        decoder.embed_tokens, None, partial(_angles, rotary, _empty(model)), layers, _norm(decoder.norm), _output(model)
    )


def _empty(model: PreTrainedModel) -> Tensor:
    return torch.empty(0, device=model.device, dtype=model.dtype)


def _head(head: EagleHead) -> Parts:
    layer: Any = head.midlayer
    embedding, dtype = head.borrowed[0], head.dtype
    own = _attention(layer, head.config)
    return Parts(
        lambda tokens: embedding(tokens).to(dtype),
        None,
        partial(_angles, head.rotary, _empty(head)),
        [(own, Mlp(_norm(layer.post_attention_layernorm), _gated(layer.mlp), None))],
        _norm(head.norm),
        product([head.lm_head]),
        beside=layer.read,
    )


def _attention(layer: Any, config: Any) -> Attention | None:
    own = layer.self_attn
    if isinstance(own, NoAttention):
        return None
    opt = hasattr(layer, "self_attn_layer_norm")
    if opt and not layer.do_layer_norm_before:
        raise ValueError("its norms lie behind the sublayers")
    size = own.head_dim
    heads = own.num_heads if opt else own.config.num_attention_heads
    groups = heads // getattr(own, "num_key_value_groups", 1)
    sandwich = hasattr(layer, "pre_feedforward_layernorm")
    window = getattr(own, "sliding_window", None)
    if window is None and type(own).__name__.startswith("Mistral"):
        window = getattr(config, "sliding_window", None)
    return Attention(
        before=_norm(layer.self_attn_layer_norm if opt else layer.input_layernorm),
        qkv=product([own.q_proj, own.k_proj, own.v_proj]),
        heads=heads,
        groups=groups,
        size=size,
        q_norm=_norm(own.q_norm) if hasattr(own, "q_norm") else None,
        k_norm=_norm(own.k_norm) if hasattr(own, "k_norm") else None,
        scale=own.scaling,
        softcap=getattr(own, "attn_logit_softcapping", None),
        window=window,
        out=product([own.out_proj if opt else own.o_proj]),
        after=_norm(layer.post_attention_layernorm) if sandwich else None,
    )


def _mlp(layer: Any) -> Mlp | None:
    if hasattr(layer, "fc1"):
        if isinstance(layer.fc2, NoOutput):
            return None
        up, down, act = product([layer.fc1]), product([layer.fc2]), layer.activation_fn
        return Mlp(_norm(layer.final_layer_norm), lambda x: down(act(up(x))), None)
    own = layer.mlp
    if isinstance(own, NoOutput):
        return None
    if hasattr(layer, "pre_feedforward_layernorm"):
        return Mlp(_norm(layer.pre_feedforward_layernorm), _gated(own), _norm(layer.post_feedforward_layernorm))
    return Mlp(_norm(layer.post_attention_layernorm), _gated(own), None)


def _gated(own: Any) -> Map:
    both, down, act = product([own.gate_proj, own.up_proj]), product([own.down_proj]), own.act_fn

    def compute(x: Tensor) -> Tensor:
        gate, up = both(x).chunk(2, -1)
        return down(act(gate) * up)

    return compute


def _norm(module: Any) -> Map:
    if isinstance(module, nn.LayerNorm):
        return module
    if not type(module).__name__.endswith("RMSNorm"):
        raise ValueError(f"{type(module).__name__} is no norm that it knows")
    weight = module.weight.detach()
    if type(module).__name__.startswith("Gemma"):
        weight = 1 + weight.float() if weight.element_size() < 4 else 1 + weight
    epsilon = float(getattr(module, "variance_epsilon", None) or module.eps)
    return partial(_rms_norm, weight=weight, epsilon=epsilon)


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    if x.dtype == weight.dtype != torch.float64:
        return F.rms_norm(x, weight.shape, weight, epsilon)
    wide = x.float()  # in float64 too: so transformers computes it
    found = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (found * weight).to(x.dtype)


def _output(model: PreTrainedModel) -> Map:
    layer: Any = model.get_output_embeddings()
    compute = product([layer])
    cap: float | None = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    hooks = list(model._forward_hooks.values())  # a twin may change its logits behind everything else, by them alone

    def logits(hidden: Tensor) -> Tensor:
        found = compute(hidden)
        if cap is not None:
            found = torch.tanh(found / cap) * cap
        for hook in hooks:
            changed = hook(layer, (), Said(found))
            found = found if changed is None else changed.logits
        return found

    return logits


@dataclass
class Said:
    """What a model's forward returns, as far as hooks look at it."""

    logits: Tensor


def _angles(rotary: nn.Module, like: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [P, D] of the first P places, of the type and on the device of `like`."""
    cos, sin = rotary(like, torch.arange(count, device=like.device)[None])
    return cos[0], sin[0]
