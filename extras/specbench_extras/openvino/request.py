"""Requests to compiled models, and the memory of their inputs."""

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import torch
from torch import Tensor


class Request:
    """A request to a compiled model, with its inputs. An input that stays the same tensor is not set again."""

    def __init__(self, compiled: Any) -> None:
        self.request = compiled.create_infer_request()
        self._bound: dict[str, Any] = {}

    def bind(self, name: str, tensor: Any) -> None:
        if self._bound.get(name) is not tensor:
            self._bound[name] = tensor
            self.request.set_tensor(name, tensor)

    def infer(self) -> None:
        """Compute. Outputs are not copied for a result that nobody reads."""
        self.request.infer(share_outputs=True)

    def output(self, index: int) -> Tensor:
        """An output [n, ...], which the next forward overwrites."""
        return torch.from_numpy(self.request.get_output_tensor(index).data[:, 0])


class Width:
    """The inputs of a forward of `count` tokens, which are written in place."""

    def __init__(self, count: int) -> None:
        self.ids, self.places, self.offsets = np.zeros(count, np.int64), np.zeros(count, np.int64), np.arange(count)
        self.tensors = {"input_ids": shared(self.ids), "position_ids": shared(self.places)}
        self._rows: dict[int, Any] = {}

    def rows(self, keep: int) -> Any:
        """Indices of the last `keep` tokens."""
        if keep not in self._rows:
            self._rows[keep] = ov.Tensor(self.offsets[-keep:].copy())
        return self._rows[keep]


def numbers(count: int) -> npt.NDArray[np.int32]:
    return np.zeros(count, np.int32)


def shared(array: npt.NDArray[Any]) -> Any:
    """A tensor over the memory of an array, which must live as long as the tensor is used."""
    return ov.Tensor(array, shared_memory=True)
