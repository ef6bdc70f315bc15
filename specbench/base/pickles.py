"""Files from anywhere that torch saved: only tensors and plain values, and not more of them than the file holds.

torch's `weights_only` lets no code run. It accepts two things that are refused here: a compressed archive, which may
unpack to any size, and tensors that repeat a few numbers over any shape.
"""

import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.base.errors import UserError
from specbench.base.untrusted import brief, regular

ERRORS = (OSError, EOFError, RuntimeError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
TIMES = 4  # bytes of tensors granted for each byte of the file: tensors may share bytes, as tied weights do
LEAST = 2**20


def read_pickle(path: Path, device: torch.device | str = "cpu", remedy: str = "") -> dict[str, Any]:
    """A mapping that `torch.save` wrote, with its tensors on `device`. Raises UserError for anything else."""
    end = f"; {remedy}" if remedy else ""
    size = regular(path, remedy=remedy)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it is compressed, which torch's own files are not")
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError("its parts are larger than the file")
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
            raise ValueError("it is no mapping of names")
        tensors = list(_tensors(loaded))
        if any(tensor.layout != torch.strided or tensor.device.type != "cpu" for tensor in tensors):
            raise ValueError("its tensors are not plain ones")
        if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > LEAST + TIMES * size:
            raise ValueError("its tensors are larger than the file")
        if torch.device(device).type == "cpu":
            return loaded
        return dict(torch.load(path, map_location=device, weights_only=True))
    except (zipfile.BadZipFile, pickle.UnpicklingError, *ERRORS) as error:
        raise UserError(f"{path} is damaged ({brief(error)}){end}") from None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
