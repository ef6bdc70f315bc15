"""The cost of a model's forwards: bytes of weights, caches and logits, and operations."""

from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from specbench.engine.models.identity import is_plain, stored_bytes

# Settings of models whose forwards do not read every weight, or do not keep keys and values in every layer.
UNKNOWN = ("num_experts", "num_local_experts", "n_routed_experts", "num_kv_shared_layers", "kv_lora_rank")

VARIES = "varies"


def facts(model: PreTrainedModel) -> dict[str, Any]:
    """The quantities that decide the cost of a model's forwards, JSON-like; empty for a model of unknown form.

    - `weight_bytes`: weights that every forward reads. Embeddings count only if they are the output layer too; a token
      reads one row of them, of `lookup_bytes`.
    - `matrix_weights` multiply every token, `output_weights` only tokens whose logits (`logit_bytes` a row) are wanted.
    - `kv_bytes_per_token`: keys and values of a token in all `layers`. `attention_width` is the total width of the
      query heads (H·D).
    - In `window_layers` of the layers a token reads the last `window` tokens, including itself; in the others it reads
      the whole sequence.
    """
    config = model.config.get_text_config()
    layers, heads, stated_groups, stated_size = (
        of_all_layers(config, name)
        for name in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    if VARIES in (layers, heads, stated_groups, stated_size):
        return {}
    groups = stated_groups or heads
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(groups, int)):
        return {}
    if any(getattr(config, name, None) for name in UNKNOWN) or _packed(model):
        return {}
    size = stated_size or config.hidden_size // heads
    kinds, window = getattr(config, "layer_types", None) or (), getattr(config, "sliding_window", None)
    near = (kinds.count("sliding_attention") if kinds else layers) if window else 0
    layer = model.get_output_embeddings()
    output = [] if layer is None else list(layer.parameters())
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    looked_up = [table for table in tables if not any(table is weight for weight in output)]
    outer = {id(weight) for weight in [*looked_up, *output]}
    inner = [weight for weight in model.parameters() if id(weight) not in outer]
    element = model.dtype.itemsize
    return {
        "weight_bytes": sum(stored_bytes(weight) for weight in [*inner, *output]),
        "lookup_bytes": sum(table.shape[-1] * table.element_size() for table in tables),
        "matrix_weights": sum(weight.numel() for weight in inner if weight.ndim > 1),
        "output_weights": sum(weight.numel() for weight in output if weight.ndim > 1),
        "logit_bytes": output[0].shape[0] * element if output else 0,
        "kv_bytes_per_token": 2 * layers * groups * size * element,
        "layers": layers,
        "attention_width": heads * size,
        "window": window if near else None,
        "window_layers": near,
    }


def of_all_layers(config: PreTrainedConfig, name: str) -> Any:
    """A setting of a configuration; None without it, VARIES where layers have values of their own (Gemma 3n and 4)."""
    try:
        value = getattr(config, name, None)
    except RuntimeError:  # transformers' AmbiguousGlobalPerLayerAttributeError
        return VARIES
    if isinstance(value, list):
        return value[0] if len({*value}) == 1 else VARIES
    return value


def _packed(model: PreTrainedModel) -> bool:
    """True if a checkpoint's weights are packed in a way of its own, so that their number is not known."""
    return getattr(model, "hf_quantizer", None) is not None and all(is_plain(weight) for weight in model.parameters())
