"""Weights in fewer bits: quantise a model on loading (on a GPU by torchao), and check what a checkpoint brings.

What NNCF compresses for `openvino` is in `extras/specbench_extras/openvino/weights.py`.
"""

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from specbench.base.untrusted import brief
from specbench.config import ModelSpec, UserError
from specbench.engine.models.identity import is_quantized, stored

GROUPS = (128, 64, 32)  # inputs that share a scale in int4: torchao's default, and the smaller ones that it allows
# Packages that transformers needs for a checkpoint's `quant_method`; others bring what they need in transformers.
PACKAGES = {
    "aqlm": ("aqlm", "accelerate"),
    "auto-round": ("auto-round",),
    "awq": ("gptqmodel", "accelerate"),
    "bitnet": ("accelerate",),
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "compressed-tensors": ("compressed-tensors",),
    "fp8": ("accelerate",),
    "gptq": ("optimum", "gptqmodel"),
    "hqq": ("hqq",),
    "mxfp4": ("accelerate",),
    "quanto": ("optimum-quanto", "accelerate"),
    "quark": ("amd-quark",),
    "spqr": ("spqr_quant", "accelerate"),
    "torchao": ("torchao",),
    "vptq": ("vptq", "accelerate"),
}
MODULES = {"amd-quark": "quark", "optimum-quanto": "optimum.quanto"}  # whose names are not their packages'


def need_float(model: PreTrainedModel, why: str) -> None:
    """Raise UserError, with the reason `why`, for a model whose weights are in fewer bits."""
    if is_quantized(model):
        raise UserError(f"{why}, and its weights are in fewer bits; choose a pair with weights in float")


def needed_package(config: Mapping[str, Any], name: str) -> None:
    """Raise UserError if a checkpoint's quantisation is none that is read here, or the package for it is missing."""
    method = str(getattr(config.get("quant_method"), "value", config.get("quant_method")))
    what = f"{name} is quantised by {brief(method)}"
    read = {known.partition("_")[0] for known in AUTO_QUANTIZATION_CONFIG_MAPPING} | {*AUTO_QUANTIZATION_CONFIG_MAPPING}
    if method not in read:  # transformers would load its numbers as they are
        raise UserError(f"{what}, which this version of transformers does not read; give the model in float")
    missing = [each for each in PACKAGES.get(method, ()) if not _installed(MODULES.get(each, each.replace("-", "_")))]
    if missing:
        raise UserError(f"{what}, and what reads it is missing: pip install {' '.join(missing)}")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def brought_words(config: Mapping[str, Any]) -> str:
    """What a checkpoint's quantisation is, for the manifest: `gptq, 4 bits, groups of 128`."""
    method = config.get("quant_method")
    words = [str(getattr(method, "value", method))]
    words += [f"{config[key]} bits" for key in ("bits", "w_bit") if isinstance(config.get(key), int)][:1]
    words += [f"groups of {config[key]}" for key in ("group_size", "q_group_size") if isinstance(config.get(key), int)]
    words += ["computed in float"] if config.get("dequantize") else []
    return ", ".join(words)


def quantized(model: PreTrainedModel, spec: ModelSpec) -> str:
    """Quantise the linear layers of a model in place, but for its output layer; returns the scheme, for the manifest.

    On a CPU as `packed` says, and with int4 those layers of a GGUF file in int8 that it has in more than 4 bits;
    elsewhere by torchao, whose scales are symmetric: int8 and fp8 have one for each output, int4 one for each group of
    inputs. Raises UserError without torchao, for a scheme that the device cannot run, for
    layers that do not fit, and for weights that are not finite.
    """
    from specbench.engine.models import packed

    on_cpu = model.device.type == "cpu"
    if on_cpu and spec.weights == "fp8":
        raise UserError("fp8 needs a GPU; use --weights int8 or int4")
    layers = linear_layers(model, spec)
    group = group_of(layers, spec, packed.GROUPS if on_cpu else GROUPS)
    finer: dict[str, nn.Linear] = {}
    if on_cpu:
        if group and spec.model.endswith(".gguf"):
            finer = {name: layer for name, layer in layers.items() if not packed.on_levels(layer.weight, group)}
            finer = {} if len(finer) == len(layers) else finer  # a file in float
        for name, layer in layers.items():
            packed.pack(layer, None if name in finer else group)
    else:
        _by_torchao(model, layers, spec, group)
    for name, layer in layers.items():
        check_finite(name, stored(layer.weight), spec)
    return words(model, layers, spec, group, "torch" if on_cpu else "torchao", finer)


def _by_torchao(model: PreTrainedModel, layers: Mapping[str, nn.Linear], spec: ModelSpec, group: int | None) -> None:
    scheme = str(spec.weights)
    need_package("torchao", f"weights in {scheme}")
    config = _config(scheme, group, model)
    from torchao.quantization import quantize_

    try:
        quantize_(model, config, lambda module, name: name in layers)
    except (RuntimeError, ValueError, AssertionError, NotImplementedError) as error:
        raise UserError(f"{spec.model} cannot be quantised to {scheme} on {model.device}: {brief(error)}") from None


def need_package(package: str, what: str) -> None:
    """Raise UserError if a package of the extra `quantized` is missing that `what` needs."""
    if not _installed(package):
        raise UserError(f"{what} need {package}: pip install 'specbench-harness[quantized]'")


def words(
    model: PreTrainedModel,
    layers: Mapping[str, nn.Linear],
    spec: ModelSpec,
    group: int | None,
    package: str,
    finer: Mapping[str, nn.Linear] = MappingProxyType({}),
) -> str:
    """How these layers of a model were quantised, for the manifest: `int8, 83% of the parameters, torchao 0.18.0`.

    Those of `finer` are in int8, whatever the scheme.
    """
    taken, in_int8 = (sum(layer.weight.numel() for layer in each.values()) for each in (layers, finer))
    grouped = f" in groups of {group}" if group else ""
    share = f"{(taken - in_int8) / model.num_parameters():.0%} of the parameters"
    share += f", int8, {in_int8 / model.num_parameters():.0%}" if finer else ""
    return f"{spec.weights}{grouped}, {share}, {package} {metadata.version(package)}"


def linear_layers(model: PreTrainedModel, spec: ModelSpec) -> dict[str, nn.Linear]:
    """The linear layers by name, without output layer and adapters; experts are often none, and stay as they are.

    Raises UserError if there are none, or if they are quantised already.
    """
    if is_quantized(model):
        raise UserError(f"{spec.model} is quantised already; leave out --weights and `weights:`")
    output = model.get_output_embeddings()
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not output and "lora_" not in name
    }
    if not layers:
        kind = type(model).__name__
        raise UserError(f"{kind} has no linear layers that {spec.weights} could take; leave out its weights")
    return layers


def group_of(layers: Mapping[str, nn.Linear], spec: ModelSpec, sizes: Sequence[int] = GROUPS) -> int | None:
    """The number of inputs that share a scale in int4: the one that the pair's file states, or the first that fits.

    None for other schemes. Raises UserError if none fits.
    """
    if spec.weights != "int4":
        return None
    choices = (spec.group,) if spec.group else sizes
    for group in choices:
        if all(layer.in_features % group == 0 for layer in layers.values()):
            return group
    raise UserError(
        f"{spec.model}: int4 needs layers whose inputs divide into groups of {min(choices)}, and not all do; use int8"
    )


def _config(scheme: str, group: int | None, model: PreTrainedModel) -> Any:
    """torchao's name for a scheme on this device. Raises UserError if it cannot run there."""
    from torchao import quantization as ao

    if scheme == "int8":
        return ao.Int8WeightOnlyConfig(set_inductor_config=False)
    if scheme == "fp8":
        if model.device.type == "cuda" and torch.cuda.get_device_capability(model.device) < (8, 9):
            raise UserError("fp8 needs a GPU of compute capability 8.9 or more; use --weights int8")
        return ao.Float8WeightOnlyConfig(set_inductor_config=False)
    if model.dtype != torch.bfloat16:
        raise UserError("int4 computes in bfloat16 on a GPU; add --dtype bfloat16, or use --weights int8")
    from torchao.quantization.quantize_.workflows import Int4PackingFormat

    packing = Int4PackingFormat.TILE_PACKED_TO_4D
    return ao.Int4WeightOnlyConfig(group_size=group, int4_packing_format=packing, set_inductor_config=False)


def check_finite(name: str, parts: Iterable[Tensor], spec: ModelSpec) -> None:
    """Raise UserError if a number or a scale of a layer's quantised weight is not finite."""
    for part in parts:
        if part.dtype.is_floating_point and not part.float().isfinite().all():
            raise UserError(
                f"{spec.model}: {name} is not finite after quantisation to {spec.weights}; its weights are "
                "damaged, or its type is too narrow"
            )
