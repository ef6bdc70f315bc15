"""The parts of a transformers decoder, read once, so that a forward needs no calls of modules.

Known are Llama and Mistral, Qwen 2 and 3, Gemma 1 and 2, and OPT; also their twins with sublayers skipped, with another
output layer, or with adapters (modules with adapters are called as they are), EAGLE heads, modules of MTP, and
Kangaroo's adapters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.engine.runtimes.products import Apart, Map, Product, gated, product
from specbench.engine.runtimes.types import Unsupported

if TYPE_CHECKING:
    from specbench.engine.models.eagle_head import EagleHead
    from specbench.engine.models.exit_adapter import ExitAdapter
    from specbench.engine.models.feature_head import FeatureHead
    from specbench.engine.models.mtp_head import MtpHead

KNOWN = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "OPT")  # + "ForCausalLM"
ROPE = ("default", "linear", "llama3", "yarn")  # kinds whose angles depend on the position alone


@dataclass(frozen=True)
class Attention:
    """An attention sublayer with H query heads and K key-value heads of D values each."""

    before: Map
    qkv: Map  # [n, width] -> [n, (H + 2K) D]
    heads: int  # H
    groups: int  # K
    size: int  # D
    q_norm: Map | None
    k_norm: Map | None
    scale: float
    softcap: float | None
    window: int | None  # how many tokens a token reads, including itself; None: all
    out: Product | Apart
    after: Map | None


@dataclass(frozen=True)
class Mlp:
    """An MLP sublayer, with the norms before and after it."""

    before: Map
    inner: Map  # what enters `down`
    down: Product | Apart
    after: Map | None


@dataclass(frozen=True)
class Parts:
    """A decoder: embed, then h + attention(h) and h + mlp(h) in each layer, then norm and output.

    A head reads features next to its tokens: `join` makes the input of its attention and that of its residual branch
    from both. The last hidden state of all but modules of MTP is the one before the norm then (`normed`).
    """

    embed: Map  # ids [n] -> [n, width]
    positions: Map | None  # positions [n] -> [n, width], if they are learned
    rotary: Callable[[int], tuple[Tensor, Tensor]] | None  # P -> cosines and sines [P, D] of the first P positions
    layers: Sequence[tuple[Attention | None, Mlp | None]]  # None: skipped
    norm: Map
    output: Map
    join: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None  # of a head: embeddings, features -> inputs
    normed: bool = True  # whether the last hidden state is the one after the norm

    @property
    def attentions(self) -> list[Attention]:
        return [attention for attention, _ in self.layers if attention]


def read(model: PreTrainedModel) -> Parts:
    """The parts of a model, with weights laid out by `product`. Raises Unsupported for a model of unknown form.

    They refer to the model's modules but not to the model, which can be freed.
    """
    kind = type(model).__name__
    if kind in _OURS:
        return _OURS[kind](model)
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


def _head(head: "EagleHead") -> Parts:
    layer: Any = head.midlayer
    embedding, dtype = head.borrowed[0], head.dtype
    attention = _attention(layer, head.config)
    return Parts(
        lambda tokens: embedding(tokens).to(dtype),
        None,
        partial(_angles, head.rotary, _empty(head)),
        [(attention, Mlp(_norm(layer.post_attention_layernorm), *_gated(layer.mlp), None))],
        _norm(head.norm),
        product([head.lm_head]),
        join=lambda embedded, features: (layer.read(embedded, features), features),
        normed=False,
    )


def _feature_head(head: "FeatureHead") -> Parts:
    if isinstance(head.carried, nn.Linear):
        raise Unsupported("the static runtime has no head whose features are a further layer; use --runtime eager")
    embedding, output, dtype, vocabulary = head.borrowed[0], product([head.borrowed[1]]), head.dtype, len(head.ids)
    fuse = head.fc

    def join(embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        fused = fuse(embedded, features)
        return fused, fused

    return Parts(
        lambda tokens: embedding(tokens).to(dtype),
        None,
        partial(_angles, head.rotary, _empty(head)),
        [(_attention(head.layer, head.config), _mlp(head.layer))],
        _as_it_is,
        lambda states: output(states)[:, :vocabulary],
        join=join,
    )


def _mtp_head(head: "MtpHead") -> Parts:
    module, embedding, output = head.module, head.borrowed[0], product([head.borrowed[1]])
    dtype, vocabulary = head.dtype, len(head.ids)
    block, token, state = module.mtp_block, _norm(module.enorm), _norm(module.hnorm)
    attention, joined = _attention(block, head.config), product([module.eh_proj])
    assert attention

    def join(embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        read = joined(torch.cat([token(embedded), state(features)], -1))
        return attention.before(read), read

    return Parts(
        lambda tokens: embedding(tokens).to(dtype),
        None,
        partial(_angles, head.rotary, _empty(head)),
        [(attention, _mlp(block))],
        _norm(module.post_norm),
        lambda states: output(states)[:, :vocabulary],
        join=join,
    )


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _exit(adapter: "ExitAdapter") -> Parts:
    module: Any = adapter
    before = _norm(module.input_layernorm)
    return Parts(
        lambda tokens: tokens,  # it reads features alone
        None,
        partial(_angles, adapter.rotary, _empty(adapter)),
        [(_attention(module, adapter.config), None)],
        _norm(module.norm),
        product([adapter.borrowed[0]]),
        join=lambda embedded, features: (before(features), features),
        normed=False,
    )


# By the name of their class.
_OURS: dict[str, Callable[[Any], Parts]] = {
    "EagleHead": _head,
    "FeatureHead": _feature_head,
    "MtpHead": _mtp_head,
    "ExitAdapter": _exit,
}


def _attention(layer: Any, config: Any) -> Attention | None:
    module = layer.self_attn
    if _skipped(module):
        return None
    opt = hasattr(layer, "self_attn_layer_norm")
    if opt and not layer.do_layer_norm_before:
        raise ValueError("its norms come after the sublayers")
    size = module.head_dim
    heads = module.num_heads if opt else module.config.num_attention_heads
    groups = heads // getattr(module, "num_key_value_groups", 1)
    sandwich = hasattr(layer, "pre_feedforward_layernorm")
    before = layer.self_attn_layer_norm if opt else getattr(layer, "input_layernorm", None)
    window = getattr(module, "sliding_window", None)
    if window is None and type(module).__name__.startswith("Mistral"):
        window = getattr(config, "sliding_window", None)
    return Attention(
        before=_norm(before) if before else _as_it_is,  # a head's input may be fused without a norm
        qkv=product([module.q_proj, module.k_proj, module.v_proj]),
        heads=heads,
        groups=groups,
        size=size,
        q_norm=_norm(module.q_norm) if hasattr(module, "q_norm") else None,
        k_norm=_norm(module.k_norm) if hasattr(module, "k_norm") else None,
        scale=module.scaling,
        softcap=getattr(module, "attn_logit_softcapping", None),
        window=window,
        out=product([module.out_proj if opt else module.o_proj]),
        after=_norm(layer.post_attention_layernorm) if sandwich else None,
    )


def _skipped(module: Any) -> bool:
    """True if a twin of the model leaves this sublayer out (`models.layer_skip`)."""
    return getattr(module, "skipped", False)


def _mlp(layer: Any) -> Mlp | None:
    if hasattr(layer, "fc1"):
        if _skipped(layer.fc2):
            return None
        up, down, act = product([layer.fc1]), product([layer.fc2]), layer.activation_fn
        return Mlp(_norm(layer.final_layer_norm), lambda x: act(up(x)), down, None)
    module = layer.mlp
    if _skipped(module):
        return None
    if hasattr(layer, "pre_feedforward_layernorm"):
        return Mlp(_norm(layer.pre_feedforward_layernorm), *_gated(module), _norm(layer.post_feedforward_layernorm))
    return Mlp(_norm(layer.post_attention_layernorm), *_gated(module), None)


def _gated(mlp: Any) -> tuple[Map, Product | Apart]:
    return gated(mlp.gate_proj, mlp.up_proj, mlp.act_fn), product([mlp.down_proj])


def _norm(module: Any) -> Map:
    if isinstance(module, nn.LayerNorm):
        return module
    if not type(module).__name__.endswith("RMSNorm"):
        raise ValueError(f"{type(module).__name__} is no norm that it knows")
    weight = module.weight.detach()
    if type(module).__name__.startswith("Gemma"):
        weight = 1 + weight.float() if weight.element_size() < 4 else 1 + weight
    epsilon = float(getattr(module, "variance_epsilon", None) or module.eps)
    twice = weight.repeat(2) if weight.device.type == "cpu" else None
    return partial(_rms_norm, weight=weight, twice=twice, epsilon=epsilon)


def _rms_norm(x: Tensor, weight: Tensor, twice: Tensor | None, epsilon: float) -> Tensor:
    """RMSNorm of rows [..., D]; `twice` is the weight [2 D], twice, on a CPU.

    There torch has no kernel for it, but one for LayerNorm: x and -x together have no mean, and the variance of x².
    """
    if x.dtype == weight.dtype != torch.float64:
        if twice is None:
            return F.rms_norm(x, weight.shape, weight, epsilon)
        return F.layer_norm(torch.cat([x, -x], -1), twice.shape, twice, None, epsilon)[..., : len(weight)]
    wide = x.float()  # in float64 too, as in transformers
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (normed * weight).to(x.dtype)


def _output(model: PreTrainedModel) -> Map:
    layer: Any = model.get_output_embeddings()
    compute = product([layer])
    cap: float | None = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    hooks = list(model._forward_hooks.values())  # the last step of a twin that changes its logits

    def output(hidden: Tensor) -> Tensor:
        logits = compute(hidden)
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        for hook in hooks:
            changed = hook(layer, (), HookOutput(logits))
            logits = logits if changed is None else changed.logits
        return logits

    return output


@dataclass
class HookOutput:
    """The part of a model's output that hooks read."""

    logits: Tensor


def _angles(rotary: nn.Module, like: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [P, D] of the first P = `count` positions, of the type and on the device of `like`."""
    cos, sin = rotary(like, torch.arange(count, device=like.device)[None])
    return cos[0], sin[0]
