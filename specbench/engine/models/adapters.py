"""LoRA adapters of peft on a model of a pair (arXiv 2106.09685): W + s·B·A, added to the weights or kept apart."""

import hashlib
from pathlib import Path
from typing import Any

import peft
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.base.untrusted import brief, is_file, listed, read_object, regular
from specbench.config import ModelSpec, UserError
from specbench.engine.models.folders import ADAPTER, adapter_folder

CONFIGURATION, WEIGHTS = ADAPTER
# Settings of peft that decide what an adapter computes, and those that matter for training or for the file only.
KNOWN = {
    *("r", "lora_alpha", "target_modules", "exclude_modules", "fan_in_fan_out", "bias", "use_rslora", "use_dora"),
    *("modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern", "lora_bias"),
}
UNUSED = {
    *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    *("inference_mode", "lora_dropout", "loftq_config", "runtime_config"),
}


def adapted(model: PreTrainedModel, spec: ModelSpec) -> tuple[PreTrainedModel, dict[str, str]]:
    """The model with the adapters that its spec names, and their hash, for the manifest; the model changes in place.

    `spec.merge` adds them to the weights; else every forward computes them apart, as in training. Raises UserError for
    adapters that are damaged, of another kind than LoRA, or of another model.
    """
    assert spec.adapter
    folder = adapter_folder(spec.adapter)
    config, tensors = _config(folder, spec.adapter), _tensors(folder, spec.adapter)
    try:
        wrapped = peft.PeftModel(model, config)  # type: ignore[no-untyped-call]
        expected = peft.get_peft_model_state_dict(wrapped)
        if missing := sorted(expected.keys() - tensors.keys()):
            raise UserError(f"{spec.adapter} lacks weights of its adapters ({listed(missing)}); fetch them again")
        if unknown := sorted(tensors.keys() - expected.keys()):
            raise UserError(
                f"{spec.adapter} has adapters that {spec.model} has no place for ({listed(unknown)}); give the model "
                "that they were trained on"
            )
        _refuse_tied(model, spec)
        peft.set_peft_model_state_dict(wrapped, tensors)
        changed = wrapped.merge_and_unload(safe_merge=True) if spec.merge else wrapped.get_base_model()
    except (ValueError, RuntimeError, KeyError, TypeError, AttributeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{spec.adapter} does not fit {spec.model}: {reason}; give the model that it was trained on"
        ) from None
    return changed.requires_grad_(False), {"adapter_hash": _hash(folder), "adapter": _words(spec)}


def _words(spec: ModelSpec) -> str:
    return f"{spec.adapter}, {'merged' if spec.merge else 'kept'}"


def _config(folder: Path, name: str) -> peft.LoraConfig:
    """What peft makes of a folder's settings; refused are kinds and options that are not read here."""
    settings = read_object(folder / CONFIGURATION)
    if settings.get("peft_type") != "LORA":
        raise UserError(f"{name}: only adapters of peft_type LORA are read, not {brief(settings.get('peft_type'))}")
    usual = peft.LoraConfig().to_dict()
    starts = settings.get("init_lora_weights", True)
    if starts not in (True, False, "gaussian"):  # others change the model's own weights, too
        raise UserError(
            f"{name}: init_lora_weights {brief(starts)} changes the model; let peft convert it to plain LoRA"
        )
    ignored = KNOWN | UNUSED | {"init_lora_weights"}
    for key in sorted(settings.keys() - ignored):
        if settings[key] and settings[key] != usual.get(key):
            raise UserError(f"{name}: the setting {brief(key)} of its adapters is not known here; merge them with peft")
    try:
        return peft.LoraConfig(**{key: settings[key] for key in KNOWN & settings.keys()}, inference_mode=True)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {CONFIGURATION} is damaged ({' '.join(str(error).split())[:160]})") from None


def _tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """The weights of adapters. Raises UserError if they are missing, pickled, damaged or not finite."""
    if not is_file(folder / WEIGHTS):
        raise UserError(f"{name} has no {WEIGHTS}; save the adapters with peft's save_pretrained")
    regular(folder / WEIGHTS)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{name}: {WEIGHTS} is damaged ({' '.join(str(error).split())[:160]})") from None
    for key, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(f"{name}: {brief(key)} has values that are not finite")
    return tensors


def _refuse_tied(model: PreTrainedModel, spec: ModelSpec) -> None:
    """Raise UserError if adapters change one of two tied layers: in the other they would do what they never learned."""
    ends: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
    adapts = any(isinstance(end, nn.Module) and type(end).__module__.startswith("peft.") for end in ends)
    if adapts and model.config.get_text_config().tie_word_embeddings:
        raise UserError(f"{spec.adapter} adapts the embeddings of {spec.model}, which are its output layer too")


def _hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in (CONFIGURATION, WEIGHTS):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]
