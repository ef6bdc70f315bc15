"""Load one model from a folder or the hub's cache. What cannot be loaded is refused in one line."""

import pickle
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from specbench.base.hub import offline
from specbench.base.untrusted import listed
from specbench.config import ModelSpec, UserError
from specbench.engine.models.folders import NEEDED, is_gguf, model_folder
from specbench.engine.models.identity import brought_in_fewer_bits
from specbench.engine.models.tokenizer import reason_of
from specbench.engine.runtimes.types import brought

OPTION, DRAFT_OPTION = "--device", "--draft-device"
OPENVINO, LLAMACPP = "openvino", "llamacpp"  # runtimes that have weights in fewer bits of their own
# Masks that earlier versions of transformers stored with GPT-J, GPT-Neo and CodeGen; it declares those of GPT-2 itself.
MASKS = re.compile(r"\.(attn|attention)\.(bias|masked_bias|causal_mask)$")
# What a model that also sees or hears has besides its language model.
SENSES = re.compile(r"(^|\.)(vision|visual|image|video|audio|speech|multi_modal|mm_)")


class Loaded(NamedTuple):
    """A model, and what the manifest keeps of how it was changed on loading: adapters, weights in fewer bits."""

    model: PreTrainedModel
    facts: dict[str, str]


def load_model(
    spec: ModelSpec,
    device: torch.device,
    dtype: str,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    spread: bool = False,
    runtime: str = "eager",
) -> Loaded:
    """The model of a spec on `device`, with its adapters, quantised for a runtime if the spec says so.

    For `llamacpp` its weights stay in their file.

    Raises UserError.
    """
    if runtime == LLAMACPP:
        return Loaded(*brought(LLAMACPP).load(spec, device, dtype))
    chosen = type_of(spec, device, dtype)
    where = model_folder(spec, pickles=allow_pickle, dtype=chosen)
    try:
        with offline():
            settings = AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code)
            if not trust_remote_code:
                _refuse_kernels(settings, spec.model)
            if config := brought_in_fewer_bits(settings):
                from specbench.engine.models.quantize import needed_package

                needed_package(config, spec.model)
            model, found = AutoModelForCausalLM.from_pretrained(
                where,
                dtype=chosen or "auto",
                device_map="auto" if spread else None,
                use_safetensors=None if allow_pickle else True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
            _check_whole(model, found, settings, spec.model)
    except (UserError, torch.OutOfMemoryError, MemoryError):
        raise
    except pickle.UnpicklingError:
        raise UserError(
            f"{spec.model}: its pickled weights hold more than tensors, which is never loaded, not even with "
            "--allow-pickle; convert them to safetensors where you trust them"
        ) from None
    except Exception as error:  # a damaged folder fails in any way within transformers
        reason = reason_of(error)
        if "trust_remote_code" in str(error):
            raise UserError(f"{spec.model} brings code of its own; to let it run, add --trust-remote-code") from None
        if not allow_pickle and any(where.glob("pytorch_model*.bin")):
            raise UserError(
                f"{spec.model} has no safetensors, and pickled weights may run code; "
                "if you trust them, add --allow-pickle"
            ) from None
        raise UserError(f"cannot load {spec.model}: {reason} -- {NEEDED}") from None
    if not hasattr(model, "hf_device_map"):
        model = model.to(device)
    facts = {}
    if config := brought_in_fewer_bits(model.config):
        from specbench.engine.models.quantize import brought_words

        facts["weights"] = brought_words(config)
    if is_gguf(spec.model):
        from specbench.engine.models.gguf_files import gguf_facts

        facts = gguf_facts(where) | facts
    if spec.layers:
        facts["layers"] = first_layers(model, spec)
    if spec.adapter:
        from specbench.engine.models.adapters import adapted  # here, as peft takes a second to import

        model, of_adapter = adapted(model, spec)
        facts |= of_adapter
    if spec.weights and runtime == OPENVINO:
        facts["weights"] = brought(OPENVINO).compressed(model, spec)
    elif spec.weights:
        from specbench.engine.models.quantize import quantized

        facts["weights"] = quantized(model, spec)
    elif is_gguf(spec.model) and not spec.adapter and not spec.layers:
        from specbench.engine.models.gguf_files import FILE, gguf_file

        setattr(model, FILE, gguf_file(spec))
    return Loaded(model.eval(), facts)


def first_layers(model: PreTrainedModel, spec: ModelSpec) -> str:
    """Leave a model its first `spec.layers` layers alone, in place; returns how many of how many, for the manifest.

    Raises UserError for a model that has no more, or whose layers do not run apart.
    """
    from specbench.engine.models.layer_ranges import layer_list  # most models come whole

    try:
        name, layers = layer_list(model)
    except ValueError as error:
        raise UserError(f"{spec.model}: it cannot be cut to its first layers, as {error}") from None
    count, had = spec.layers, len(layers)
    assert count
    if count >= had:
        raise UserError(f"{spec.model} has {had} layers, so `layers` must be from 1 to {had - 1}")
    setattr(model.get_decoder(), name, layers[:count])
    config = model.config.get_text_config()
    config.num_hidden_layers = count
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:count]
    return f"{count} of {had}"


def type_of(spec: ModelSpec, device: torch.device, dtype: str) -> torch.dtype | None:
    """What the weights of a model are converted to: the type that is asked for, or the usual one; None: as stored."""
    chosen = dtype if dtype != "auto" else "float32" if device.type == "cpu" else spec.dtype
    if chosen == "auto":
        return None
    kind = getattr(torch, chosen, None)
    if not isinstance(kind, torch.dtype):
        raise UserError(f"{spec.model}: there is no dtype {chosen}; use auto, float32, bfloat16, float16 or float64")
    return kind


def _refuse_kernels(settings: PreTrainedConfig, name: str) -> None:
    """Raise UserError if a model's settings name compiled code on the hub, OWNER/REPOSITORY."""
    parts = [settings, *(getattr(settings, name, None) for name in settings.sub_configs)]
    keys = ("_attn_implementation", "_experts_implementation")
    if any("/" in str(getattr(part, key, None)) for part in parts for key in keys):
        raise UserError(f"{name} asks for a kernel of the hub, which is code; to let it run, add --trust-remote-code")


def _check_whole(model: PreTrainedModel, found: Mapping[str, Any], settings: PreTrainedConfig, name: str) -> None:
    """Raise UserError unless a loaded model has its weights from its files, and has all that are in them.

    `found` is transformers' account of the loading, without the names that the model's class declares tied or
    ignorable; `settings` are those of the folder, of which the model may be a part.
    """
    part = type(model.config) is not type(settings)
    left = [key for key in found["unexpected_keys"] if not (MASKS.search(key) or (part and SENSES.search(key)))]
    if missing := found["missing_keys"]:
        hint = ", or set tie_word_embeddings to true if the output layer is the embedding" * _lacks_output(
            model, missing
        )
        raise UserError(
            f"{name}: its files lack {listed(missing)}, which would be random numbers; fetch the model again{hint}"
        )
    if left:
        raise UserError(
            f"{name}: its files hold {listed(left)}, which {type(model).__name__} with its config.json has no place "
            "for; give the config.json that belongs to these weights"
        )
    untied = model.get_expanded_tied_weights_keys(all_submodels=True).keys() - model.all_tied_weights_keys.keys()
    if untied:
        raise UserError(
            f"{name}: its config.json ties {listed(untied)} to the embedding, and its files hold other values for it; "
            "set tie_word_embeddings to false if they are meant"
        )


def _lacks_output(model: PreTrainedModel, missing: Iterable[str]) -> bool:
    output = model.get_output_embeddings()
    return output is not None and any(model.get_submodule(key.rpartition(".")[0]) is output for key in missing)


def device_of(name: str, option: str = OPTION) -> torch.device:
    """The device of a name; the target's, by `option`, becomes the current one. Raises UserError if it is not there."""
    usual = {"auto": "cuda" if torch.cuda.is_available() else "cpu", "spread": "cuda:0"} if option == OPTION else {}
    try:
        device = torch.device(usual.get(name, name))
        torch.empty(0, device=device)
        if option == OPTION and device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # events are recorded on the current device
    except (RuntimeError, AssertionError) as error:
        names = "auto, cpu, cuda, cuda:N or spread" if option == OPTION else "cpu, cuda or cuda:N"
        raise UserError(f"{option} {name}: {str(error).splitlines()[0]}; use {names}") from None
    return device
