"""Is another computation of a model the model? How far apart logits may be, and the check of each lean form."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, PreTrainedModel

from specbench.engine.models.identity import is_plain
from specbench.engine.runtimes.products import computed_in
from specbench.engine.runtimes.types import Runner, Unsupported

CHECKED = 24  # tokens of the text
# In half precision: how many times as far from float32 as the model's own logits the lean ones may be (root of the mean
# square). Our choice: the lean form rounds less often, and over texts of this length it was at 0.7 to 1.1.
FARTHER = 1.5
# The share of the spread of logits by which rounding may move them, by bytes of a number; norms of 8 compute in 4.
TOLERANCE = {2: 0.2, 4: 0.01, 8: 0.01}


def tolerance(model: nn.Module) -> float:
    """How far two computations of a model's logits may be apart, as a share of their spread.

    What enters a weight in fewer bits may be rounded to fewer bytes than the weight's type has (`models.packed`).
    """
    sizes = [getattr(weight, "computed_bytes", weight.dtype.itemsize) for weight in model.parameters()]
    return max(TOLERANCE.get(size, 0.0) for size in sizes)


def off(actual: Tensor, expected: Tensor) -> float:
    """The largest difference of two logits [n, V], as a share of the spread of `expected`; ∞ if one alone is finite.

    A translated draft's logits are -inf for tokens that it lacks, in both. A broken model's may be finite nowhere: 0 if
    both are.
    """
    finite = expected.isfinite()
    if not (actual.isfinite() == finite).all():
        return math.inf
    known = expected[finite].double()  # whose squares stay finite
    if not len(known):
        return 0.0
    spread = float(known.std(correction=0)) or 1.0
    return float((actual[finite].double() - known).abs().max()) / spread


class Wide(TorchFunctionMode):
    """Every function is computed in float32, whatever the type of its weights, but for products of packed ones."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.embedding:  # rows of a table, which is not copied
            return _widened(func(*args, **(kwargs or {})))
        return func(*map(_widened, args), **{name: _widened(value) for name, value in (kwargs or {}).items()})


class WideProducts(TorchFunctionMode):
    """Linear layers are computed in float32 and rounded, which takes a fraction of torch's time in half precision.

    For processors that have no products of their type.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not F.linear:
            return func(*args, **(kwargs or {}))
        return func(*map(_widened, args), **{name: _widened(one) for name, one in (kwargs or {}).items()}).to(
            args[0].dtype
        )


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and not is_plain(value):  # a packed weight
        return value
    if isinstance(value, Tensor) and value.is_floating_point() and value.element_size() < 4:
        return value.to(torch.float32)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(map(_widened, value))
    return torch.float32 if value in (torch.bfloat16, torch.float16) and isinstance(value, torch.dtype) else value


@torch.inference_mode()
def check(model: PreTrainedModel, runner: Runner, joins: bool) -> None:
    """Raise Unsupported if an empty runner gives other logits than its model on a short text, read in two parts.

    In half precision both are compared with the same weights in float32, and the runner's may be FARTHER from it.
    """
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(7, 7 + 11 * CHECKED, 11, device=model.device) % vocabulary
    features = None
    if joins:
        rng = torch.Generator().manual_seed(0)
        features = torch.randn(CHECKED, model.config.hidden_size, generator=rng).to(model.device, model.dtype)
    native = computed_in(model.device.type, model.dtype) in (None, model.dtype)
    with nullcontext() if native else WideProducts():
        own = _logits(model, ids, features)
    first, last = (None, None) if features is None else (features[:-4], features[-4:])
    whole, _ = runner.forward(ids[:-4], 0, (), first, None)
    block, _ = runner.forward(ids[-4:], 0, (), last, None)
    runner.truncate(CHECKED - 1)  # a single token may be computed in another way than several
    single, _ = runner.forward(ids[-1:], 0, (), None if last is None else last[-1:], None)
    actual, expected = torch.cat([whole, block, single]), torch.cat([own, own[-1:]])
    error = off(actual, expected)
    if model.dtype.itemsize == 2 and all(is_plain(one) or hasattr(one, "computed_bytes") for one in model.parameters()):
        with Wide():
            exact = _logits(model, ids, features)
        exact = torch.cat([exact, exact[-1:]])
        theirs, ours = _distance(expected, exact), _distance(actual, exact)
        if ours <= FARTHER * theirs:
            return
        raise Unsupported(
            f"the static runtime computes other logits for {type(model).__name__} ({ours / theirs:.1f} times as far "
            "from float32 as the model's own); use --runtime eager"
        )
    if not error <= tolerance(model):
        raise Unsupported(
            f"the static runtime computes other logits for {type(model).__name__} (off by {error:.2g} of "
            "their spread); use --runtime eager"
        )


def _logits(model: PreTrainedModel, ids: Tensor, features: Tensor | None) -> Tensor:
    arguments = {} if features is None else {"features": features[None]}
    logits: Tensor = model(ids[None], past_key_values=DynamicCache(), return_dict=True, **arguments).logits[0].float()
    return logits


def _distance(some: Tensor, exact: Tensor) -> float:
    """The root of the mean square of the difference, over what is finite in both; infinite if one alone is finite."""
    finite = exact.isfinite()
    if not torch.equal(some.isfinite(), finite):
        return float("inf")
    return float((some.float() - exact)[finite].square().mean().sqrt())
