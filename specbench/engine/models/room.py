"""Will the models of a pair fit into memory? Estimated from the headers of their files, before anything is loaded."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from specbench.config import ModelSpec, UserError
from specbench.engine.clock import free_memory
from specbench.engine.models.folders import weight_files

GIB = 2**30
BITS = {"int8": 8, "fp8": 8, "int4": 4}  # of a weight, on a GPU; on a CPU int4 takes a byte
FLOATS = ("F64", "F32", "F16", "BF16")  # in a file's header; these are converted on loading
KEPT = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2}  # bytes; all others take one


class Coming(NamedTuple):
    """A model that is to be loaded."""

    spec: ModelSpec
    folder: Path
    dtype: torch.dtype | None  # what its weights are converted to; None: as they are stored


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


def peak(models: Sequence[Coming], device: torch.device) -> int:
    """The most bytes that weights take while models are loaded one after another, each quantised when it is there.

    Pickled weights are not counted.
    """
    before = most = 0
    for spec, folder, dtype in models:
        whole, matrices = sizes(folder, dtype)
        most = max(most, before + whole)
        before += whole
        if spec.weights:
            bits = 8 if device.type == "cpu" else BITS[spec.weights]
            before -= matrices - matrices * bits // (8 * (dtype or torch.bfloat16).itemsize)
    return most


def sizes(folder: Path, dtype: torch.dtype | None) -> tuple[int, int]:
    """The bytes of a model's weights in a type, and those of its matrices but for embeddings and the output layer.

    Quantisation on loading makes the latter fewer. A damaged file counts nothing; loading says what is wrong with it.
    """
    whole = matrices = 0
    for name in weight_files(folder):
        try:
            with safe_open(folder / name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118  (not a mapping)
                    part = file.get_slice(key)
                    kind, shape = part.get_dtype(), part.get_shape()
                    size = math.prod(shape) * (dtype.itemsize if dtype and kind in FLOATS else KEPT.get(kind, 1))
                    whole += size
                    if len(shape) == 2 and not ("embed" in key or "lm_head" in key):
                        matrices += size
        except (OSError, SafetensorError):
            continue
    return whole, matrices
