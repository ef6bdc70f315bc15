"""A second device on a machine without one: torch's place for devices of others, computed by the CPU in secret.

Its tensors are on `other:0`. As on a GPU, an operation that meets a tensor of the CPU next to them is refused, but for
copies and for numbers (tensors without dimensions).

It counts what a GPU's host would start and wait for: `launches`, and `waits` by the operation.
"""

import collections
import functools
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

COPIES = (torch.ops.aten._to_copy, torch.ops.aten.copy_)
UNSIZED = ("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::_local_scalar_dense")
launches: collections.Counter[str] = collections.Counter()
waits: collections.Counter[str] = collections.Counter()
inner: list[Any] = []  # operations that are being computed


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
    if not inner:
        counted(operation, args, kwargs)
    if operation.overloadpacket is torch.ops.aten.copy_:
        into, source = (held(tensor) for tensor in args[:2])
        into.copy_(source)
        return args[0]
    wanted = kwargs.get("device")
    if wanted is not None:
        kwargs["device"] = torch.device("cpu")
    inner.append(operation)
    try:
        made = operation(*tree_map(held, args), **tree_map(held, kwargs))
    finally:
        inner.pop()
    if wanted is not None and torch.device(wanted).type == "cpu":
        return made
    first = operation._schema.arguments[0].alias_info if operation._schema.arguments else None
    return args[0] if first is not None and first.is_write else tree_map(placed, made)


def counted(operation: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Count an operation: a launch, unless it makes a view; and a wait, unless the host can go on."""
    schema = operation._schema
    if operation.overloadpacket in COPIES:
        copies = operation.overloadpacket is torch.ops.aten.copy_
        source, other = (args[1], args[0]) if copies else (args[0], kwargs.get("device", args[0].device))
        there = isinstance(other, Elsewhere) if copies else torch.device(other).type == "other"
        crosses = isinstance(source, Elsewhere) != there
        blocking = not (args[2] if copies and len(args) > 2 else kwargs.get("non_blocking", False))
        if crosses and blocking:
            waits[f"{schema.name} {'to the device' if there else 'to the host'}"] += 1
    elif schema.name in UNSIZED or (
        schema.name.startswith("aten::index")
        and any(isinstance(one, Elsewhere) and one.dtype == torch.bool for one in tree_leaves(args[1:2]))
    ):
        waits[schema.name] += 1
    if not any(result.alias_info and not result.alias_info.is_write for result in schema.returns):
        launches[schema.name] += 1


def held(value: Any) -> Any:
    return value.held if isinstance(value, Elsewhere) else value


def placed(value: Any) -> Any:
    return Elsewhere(value) if isinstance(value, torch.Tensor) and not isinstance(value, Elsewhere) else value


class Tensors(TorchFunctionMode):
    """`torch.tensor` for the other device by way of the CPU: it doesn't ask those that devices of others bring.

    So for `torch.arange` and `torch.eye`, which make a tensor of no size and then resize it.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if function is torch.tensor and device is not None and torch.device(device).type == "other":
            return torch.tensor(*args, **kwargs | {"device": "cpu"}).to(device)
        if function in (torch.arange, torch.eye) and device is not None and torch.device(device).type == "other":
            return function(*args, **kwargs | {"device": "cpu"}).to(device, non_blocking=True)
        if function is torch.Tensor.tolist and isinstance(args[0], Elsewhere):
            waits["tolist"] += 1
            return args[0].held.tolist()
        return function(*args, **kwargs)


@functools.cache
def registered() -> torch.library.Library:
    """Make the device known to torch, once in a process."""
    _setup_privateuseone_for_python_backend("other")
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda operation, *args, **kwargs: computed(operation, args, kwargs), "PrivateUse1")
    torch.other.get_rng_state = lambda device=None: torch.empty(0)  # type: ignore[attr-defined]
    torch.other.set_rng_state = lambda state, device=None: None  # type: ignore[attr-defined]
    torch.other.get_amp_supported_dtype = lambda: []  # type: ignore[attr-defined]
    return library
