"""Files that torch saved, from anywhere: nothing but tensors and plain values, and no more of them than the file holds.

torch's own `weights_only` lets no code run. What it lets pass, and is refused here: a compressed archive, which may
unfold to any size, and tensors that repeat a few numbers over any shape.
"""

import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.errors import UserError
from specbench.untrusted import brief, regular

ERRORS = (OSError, EOFError, RuntimeError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
TIMES = 4  # so many times its own bytes a file may be in tensors that share them, such as tied weights
LEAST = 2**20


def read_pickle(path: Path, device: torch.device | str = "cpu", remedy: str = "") -> dict[str, Any]:
    """A mapping that `torch.save` wrote, tensors on the device. Raises UserError for anything else."""
    behind = f"; {remedy}" if remedy else ""
    size = regular(path, remedy=remedy)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        if any(one.compress_type != zipfile.ZIP_STORED for one in entries):
            raise ValueError("it is compressed, which torch's own files are not")
        if sum(one.file_size for one in entries) > size:
            raise ValueError("its parts are larger than the file")
        found = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
            raise ValueError("it is no mapping of names")
        tensors = list(_tensors(found))
        if any(one.layout != torch.strided or one.device.type != "cpu" for one in tensors):
            raise ValueError("its tensors are not plain ones")
        if sum(one.numel() * one.element_size() for one in tensors) > LEAST + TIMES * size:
            raise ValueError("its tensors are larger than the file")
        if torch.device(device).type == "cpu":
            return found
        return dict(torch.load(path, map_location=device, weights_only=True))
    except (zipfile.BadZipFile, pickle.UnpicklingError, *ERRORS) as error:
        raise UserError(f"{path} is damaged ({brief(error)}){behind}") from None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
