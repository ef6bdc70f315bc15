"""Weights in fewer bits for `openvino`: NNCF compresses a model's export, and the model gets the rounded weights."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from importlib import metadata
from io import StringIO
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.base.untrusted import brief
from specbench.config import ModelSpec, UserError
from specbench.engine.models.identity import PACKED_BYTES
from specbench.engine.models.quantize import (
    check_finite,
    group_of,
    linear_layers,
    need_package,
    words,
)
from specbench_extras.openvino.runtime import OpenVINO

MODES = {"int8": "INT8_SYM", "int4": "INT4_SYM"}  # NNCF's names


def compressed(model: PreTrainedModel, spec: ModelSpec) -> str:
    """Compress a model's export: its linear layers but for the output layer; returns the scheme, for the manifest.

    Scales are symmetric, in float16: int8 has one for each output, int4 one for each group of inputs. In place, the
    model's own weights become the numbers times their scales, so that every runtime gives the logits of the export.

    Raises:
        UserError: OpenVINO or NNCF is missing, the scheme is none of NNCF's, layers do not fit, or weights are not
            finite afterwards.
    """
    scheme = str(spec.weights)
    if scheme not in MODES:
        raise UserError(
            f"the openvino runtime has weights in {' and '.join(MODES)}, not {scheme}; use --runtime static"
        )
    OpenVINO(model.device)  # raises Unsupported where it cannot run
    need_package("nncf", f"weights in {scheme} on openvino")
    from specbench_extras.openvino.export import digest, kept, need_float32, use_instead

    need_float32(model)
    layers = linear_layers(model, spec)
    group = group_of(layers, spec)
    name = f"{digest(model)}-{scheme}{group or ''}-nncf{metadata.version('nncf')}"
    for again in (False, True):  # the cached file may be damaged, or hold other weights than its name says
        export, from_cache = kept(model, name, lambda: _compressed(model, layers, spec, group), again)
        rounded = _rounded(export, layers, spec)
        if not from_cache or all(each.fits(layers[name].weight) for name, each in rounded.items()):
            break
    if not rounded:
        raise UserError(f"{spec.model}: NNCF finds no linear layers in its export; leave out its weights")
    for name, each in rounded.items():
        layers[name].weight.data = each.weight
        setattr(layers[name].weight, PACKED_BYTES, each.size)
    use_instead(model, export)
    return words(model, {name: layers[name] for name in rounded}, spec, group, "nncf")


def _compressed(model: PreTrainedModel, layers: Mapping[str, nn.Linear], spec: ModelSpec, group: int | None) -> Any:
    """A model's export with the weights of `layers` as integers and scales."""
    from specbench_extras.openvino.export import traced

    export = traced(model)
    wanted = set(_constants(layers))
    others = [
        node.get_friendly_name()
        for node in export.get_ops()
        if node.get_type_name() in ("MatMul", "Gather") and not wanted & set(_sources(node))
    ]
    grouped = {} if group is None else {"group_size": group, "ratio": 1.0, "all_layers": True, "awq": False}
    try:
        with redirect_stdout(StringIO()), warnings.catch_warnings():  # it prints bars and tables
            warnings.simplefilter("ignore")
            import nncf

            logging.getLogger("nncf").setLevel(logging.ERROR)
            mode, ignored = nncf.CompressWeightsMode[MODES[str(spec.weights)]], nncf.IgnoredScope(names=others)
            return nncf.compress_weights(export, mode=mode, ignored_scope=ignored, **grouped)
    except Exception as error:  # of a library that may fail in any way
        raise UserError(f"NNCF cannot compress {spec.model} to {spec.weights}: {brief(error)}") from None


def _constants(layers: Mapping[str, nn.Linear]) -> dict[str, str]:
    """The layers' names by those of their weights in a traced graph."""
    return {f"self.model.{name}.weight": name for name in layers}


def _sources(node: Any) -> Iterator[str]:
    """The names of what enters a node, before conversions and transpositions."""
    for port in node.inputs():
        source = port.get_source_output().get_node()
        while source.get_type_name() in ("Convert", "Transpose", "Reshape"):
            source = source.input(0).get_source_output().get_node()
        yield source.get_friendly_name()


class _Rounded(NamedTuple):
    """A weight [outputs, inputs] as numbers times scales."""

    weight: Tensor
    step: Tensor  # [outputs, inputs]: the size of its scale
    size: int  # bytes of numbers and scales

    def fits(self, original: Tensor) -> bool:
        """True if every number is the nearest to the original's, or one next to it."""
        return bool(((self.weight - original).abs() <= 1.5 * self.step).all())


def _rounded(export: Any, layers: Mapping[str, nn.Linear], spec: ModelSpec) -> dict[str, _Rounded]:
    """The weights of the layers that are compressed. Raises UserError for a scale that is not finite."""
    parts = {node.get_friendly_name(): node for node in export.get_ops() if node.get_type_name() == "Constant"}
    rounded = {}
    for constant, name in _constants(layers).items():
        if f"{constant}/scale" not in parts:
            continue
        numbers, scales = parts[constant], parts[f"{constant}/scale"]
        scale = torch.from_numpy(scales.get_data().copy())
        check_finite(name, [scale], spec)
        shape, integers = layers[name].weight.shape, _integers(numbers).float()
        weight, step = integers * scale.float(), scale.float().abs().expand(integers.shape)
        size = numbers.get_byte_size() + scales.get_byte_size()
        rounded[name] = _Rounded(weight.reshape(shape), step.reshape(shape), size)
    return rounded


def _integers(constant: Any) -> Tensor:
    """The numbers of a constant in int8 or int4; of the latter, the first of two is in a byte's lower half."""
    integers = torch.from_numpy(constant.get_data(dtype=np.int8).copy())
    if constant.get_element_type().get_type_name() == "i4":
        integers = torch.stack([integers << 4 >> 4, integers >> 4], -1)
    return integers.reshape(list(constant.get_output_shape(0)))
