"""What config.json of a released head says, in one form: the authors' own, SpecForge's (SGLang), speculators' (vLLM).

SpecForge (sgl-project/SpecForge, configs/) writes the authors' form. speculators (vllm-project/speculators,
models/*/config.py) keeps the sizes of the layers in `transformer_layer_config`, where defaults are left out.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from specbench.config import UserError

TYPE = "speculators_model_type"
# Forms of heads that engines ship and that cannot be read here, by a part of what config.json calls them.
UNREAD = {
    "peagle": "P-EAGLE, which drafts all tokens in one forward",
    "mtp": "multi-token prediction, a layer of the target's own kind",
    "dspark": "DSpark",
    "domino": "Domino",
    "mlpspeculator": "MLP speculator",
}
# Switches of trainers that change what a head computes, and that no head here has.
SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "sample_from_anchor")


def in_one_form(facts: Mapping[str, Any], path: str, kind: str) -> dict[str, Any]:
    """The fields of a head of this kind as its authors' config.json has them.

    Raises UserError for heads of other kinds, and for switches that change what a head computes.
    """
    remedy = f"import heads of {kind}"
    names = [facts.get(TYPE), facts.get("model_type"), *list(facts.get("architectures") or [])]
    said = [str(name).lower().replace("-", "").replace("_", "") for name in names if name]
    for part, what in UNREAD.items():
        if any(part in name for name in said):
            raise UserError(f"{path}: its head is of {what}, which cannot be read here; {remedy}")
    if set_ := [name for name in SWITCHES if facts.get(name)]:
        raise UserError(f"{path}: {set_[0]} is {facts[set_[0]]}, and heads here have no such thing; {remedy}")
    if TYPE not in facts:
        if facts.get("norm_output") is False:
            raise UserError(f"{path}: norm_output is False, and heads here norm what they say; {remedy}")
        return dict(facts)
    if facts[TYPE] != kind:
        raise UserError(f"{path}: its head is of {facts[TYPE]!s:.40}, not of {kind}; {remedy}")
    layer: Any = facts.get("transformer_layer_config")
    try:
        whole = CONFIG_MAPPING[layer.get("model_type", "qwen3")](**layer).to_dict()
    except Exception as error:  # whatever transformers makes of fields that do not fit
        reason = " ".join(str(error).split())[:80]
        raise UserError(f"{path}: transformer_layer_config says no layer ({reason}); {remedy}") from None
    layers = facts.get("aux_hidden_state_layer_ids")
    return {
        **{name: value for name, value in whole.items() if value is not None},
        **{name: value for name, value in facts.items() if name not in ("transformer_layer_config", "norm_output")},
        # DFlash's authors count from the state after the first layer, and speculators from the one before it.
        **({"target_layer_ids": [layer - 1 for layer in layers]} if isinstance(layers, list) else {}),
    }


def in_own_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of an EAGLE-3 head by the names of its authors: its layer may be called `layers.0`."""
    return {
        f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name: tensor
        for name, tensor in tensors.items()
    }
