"""A second device on a machine without one: torch's place for devices of others, computed by the CPU in secret.

Its tensors are on `other:0`. As on a GPU, an operation that meets a tensor of the CPU next to them is refused, but for
copies and for numbers (tensors without dimensions).
"""

import functools
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

COPIES = (torch.ops.aten._to_copy, torch.ops.aten.copy_)


class Elsewhere(torch.Tensor):
    """A tensor of the other device. What it holds is on the CPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "Elsewhere":
        sizes = held.shape, held.stride(), held.storage_offset()
        with torch.inference_mode(False):  # torch counts the versions of views, which tensors of inference lack
            made = torch.Tensor._make_wrapper_subclass(cls, *sizes, dtype=held.dtype, device=torch.device("other", 0))
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return computed(operation, args, dict(kwargs or {}))

    def __repr__(self) -> str:
        return f"Elsewhere({self.held!r})"


def computed(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation on the other device returns. Raises RuntimeError for tensors on two devices."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    strays = [tensor for tensor in tensors if tensor.dim() and not isinstance(tensor, Elsewhere)]
    if strays and operation.overloadpacket not in COPIES:
        raise RuntimeError(f"{operation}: tensors on two devices")
    if operation.overloadpacket is torch.ops.aten.copy_:
        into, source = (held(tensor) for tensor in args[:2])
        into.copy_(source)
        return args[0]
    wanted = kwargs.get("device")
    if wanted is not None:
        kwargs["device"] = torch.device("cpu")
    made = operation(*tree_map(held, args), **tree_map(held, kwargs))
    if wanted is not None and torch.device(wanted).type == "cpu":
        return made
    first = operation._schema.arguments[0].alias_info if operation._schema.arguments else None
    return args[0] if first is not None and first.is_write else tree_map(placed, made)


def held(value: Any) -> Any:
    return value.held if isinstance(value, Elsewhere) else value


def placed(value: Any) -> Any:
    return Elsewhere(value) if isinstance(value, torch.Tensor) and not isinstance(value, Elsewhere) else value


class Tensors(TorchFunctionMode):
    """`torch.tensor` for the other device by way of the CPU: it doesn't ask those that devices of others bring."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if function is torch.tensor and device is not None and torch.device(device).type == "other":
            return torch.tensor(*args, **kwargs | {"device": "cpu"}).to(device)
        return function(*args, **kwargs)


@functools.cache
def registered() -> torch.library.Library:
    """Make the device known to torch, once in a process."""
    _setup_privateuseone_for_python_backend("other")
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda operation, *args, **kwargs: computed(operation, args, kwargs), "PrivateUse1")
    return library
