"""Will the models of a pair fit into memory? Estimated from the headers of their files, before anything is loaded."""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from specbench.base.console import warn
from specbench.config import ModelSpec, UserError
from specbench.engine.clock import free_memory
from specbench.engine.models.folders import weight_files

GIB = 2**30
BITS = {"int8": 8, "fp8": 8, "int4": 4}  # of a weight; scales are not counted
MOST_HEADER = 100_000_000  # bytes, as in safetensors
FLOATS = ("F64", "F32", "F16", "BF16")  # in a file's header; these are converted on loading
KEPT = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2}  # bytes; all others take one


class Coming(NamedTuple):
    """A model that is to be loaded."""

    spec: ModelSpec
    folder: Path
    dtype: torch.dtype | None  # what its weights are converted to; None: as they are stored
    beside: bool = False  # weights in fewer bits are made next to those in float, which stay: NNCF's, for openvino


def check_room(pair: str, models: Sequence[Coming], device: torch.device, gpus: int = 1) -> None:
    """Raise UserError if the models of a pair, in the order of loading, need more memory than is free.

    With `gpus` > 1 the pair is spread over so many. Caches and activations are not counted.
    """
    needed = peak(models, device)
    try:
        free = sum(free_memory(torch.device("cuda", i)) for i in range(gpus)) if gpus > 1 else free_memory(device)
    except (OSError, StopIteration):  # a system that does not tell
        return
    if needed > free:
        raise UserError(
            f"{pair} needs {needed / GIB:.1f} GiB for its weights, and {free / GIB:.1f} GiB are free on {device}; "
            "choose smaller models, add --dtype bfloat16 or --weights int8, or free memory"
        )


@cache
def announce(name: str, what: str, size: int, device: torch.device) -> None:
    """Say, once in a process, what a method keeps next to the pair before it takes it: `size` bytes.

    Little is not worth a line. Raises UserError if so much is not free.
    """
    try:
        free = free_memory(device)
    except (OSError, StopIteration):  # a system that does not tell
        free = size
    if size > free:
        raise UserError(
            f"{name} keeps {what}, {size / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free on {device}; choose a "
            "smaller draft, or leave the method out"
        )
    if size > GIB:
        warn(f"{name} keeps {what}: {size / GIB:.1f} GiB more")


def learning_bytes(model: nn.Module) -> int:
    """What training a copy of a model takes: the copy, what it was, and gradients in the model's type; and, in at least
    float32, the weights that are trained, their gradients and the two moments of AdamW.
    """
    return sum(
        weight.numel() * (3 * weight.element_size() + 4 * max(4, weight.element_size()))
        for weight in model.parameters()
        if weight.is_floating_point()
    )


def peak(models: Sequence[Coming], device: torch.device) -> int:
    """The most bytes that weights take while models are loaded one after another, each quantised when it is there.

    Pickled weights are not counted.
    """
    before = most = 0
    for spec, folder, dtype, beside in models:
        whole, matrices = sizes(folder, dtype)
        most = max(most, before + whole)
        before += whole
        if spec.weights:
            bits = BITS[spec.weights]
            fewer = matrices * bits // (8 * (dtype or torch.bfloat16).itemsize)
            before += fewer if beside else fewer - matrices
            most = max(most, before)
    return most


def sizes(folder: Path, dtype: torch.dtype | None) -> tuple[int, int]:
    """The bytes of a model's weights in a type, and those of its matrices but for embeddings and the output layer.

    Quantisation on loading makes the latter fewer. A damaged file counts nothing; loading says what is wrong with it.
    """
    whole = matrices = 0
    for name in weight_files(folder):
        try:
            parts = [(key, str(part["dtype"]), tuple(map(int, part["shape"]))) for key, part in _header(folder / name)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        for key, kind, shape in parts:
            size = math.prod(shape) * (dtype.itemsize if dtype and kind in FLOATS else KEPT.get(kind, 1))
            whole += size
            if len(shape) == 2 and not ("embed" in key or "lm_head" in key):
                matrices += size
    return whole, matrices


def _header(path: Path) -> list[tuple[str, Any]]:
    """What a safetensors file says of its tensors, by name.

    Read without the weights: a file larger than the memory may not be mapped. Raises ValueError if it is damaged.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MOST_HEADER:
            raise ValueError("too long")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    if 8 + size + max(part["data_offsets"][1] for part in header.values()) != path.stat().st_size:
        raise ValueError("cut off")
    return list(header.items())
