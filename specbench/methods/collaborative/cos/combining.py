"""What the methods of collaborative decoding share: the settings for the combination and for the first proposer."""

import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from torch import Tensor

from specbench import permissions
from specbench.base.hashes import short_hash
from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Combination, Stateless, Watch
from specbench.methods import own
from specbench.methods.collaborative.cos.combine import Function, contrastive, custom, realigned, weighted

SMALLEST = "smallest"
TOLERANCE = 1e-3  # of sums of weights and probabilities, which should be 1
KINDS = ("weighted", "contrastive", "realigned")


class Combining(Base):
    """How the models of a pair are combined."""

    combine: str = Field(
        description="weighted, contrastive, realigned, or a function of your own: module:function, FILE.py:function"
    )
    weights: float | tuple[float, ...] | None = Field(
        description="weighted: one for each model, in their order; a number λ: λ and 1 - λ of two; null: all equal"
    )
    mu: float = Field(ge=0, lt=1, description="contrastive: how much of the first model's logits is subtracted (μ)")
    realign: float = Field(allow_inf_nan=False, description="realigned: the second model's share of the logits (λ)")
    level: Literal["probabilities", "logits"] = Field(description="what a function of your own combines")

    @field_validator("weights", "gamma", mode="before", check_fields=False)
    @classmethod
    def listed(cls, value: Any) -> Any:
        """Raise an error of its own for a list that was written without brackets."""
        if isinstance(value, str):
            raise PydanticCustomError("list", f"{value!r} is not a number; write several in brackets: [{value}]")
        return value


class Proposing(Combining):
    """Settings of a method in which one model proposes first."""

    proposer: str = Field(description="who proposes first: smallest, or the role of a model")


class Collaborating(Stateless):
    """Base of the methods: n sessions, in the order of the pair's members, and their combination. Lossless as to r."""

    lossless = True
    reach = 1
    combination: Combination

    def __init__(self, sessions: list[Session], combination: Combination, inputs: dict[str, str]) -> None:
        self.sessions, self.combination, self._inputs = sessions, combination, inputs

    def inputs(self) -> dict[str, str]:
        return self._inputs


def parts(settings: Combining, pair: Pair, watch: Watch) -> tuple[list[Session], Combination, dict[str, str]]:
    """The arguments of `Collaborating`. Raises UserError for settings that do not fit the pair."""
    roles = pair.collaboration
    if len(roles) < 2:
        raise UserError(
            f"the pair {pair.name} has one model; collaborative decoding needs a draft or members next to it"
        )
    sessions = [pair.session(role, watch) for role in roles]
    combined, inputs = combination(settings, roles, pair.vocabulary)
    return sessions, combined, inputs


def combination(settings: Combining, roles: tuple[str, ...], vocabulary: int) -> tuple[Combination, dict[str, str]]:
    """The combination that the settings choose for models in these roles, and the hash of a user's function."""
    if settings.combine == "weighted":
        return weighted(weights_of(settings.weights, roles)), {}
    if settings.combine in KINDS:
        if len(roles) != 2:
            raise UserError(f"combine={settings.combine} is for two models; this pair has {', '.join(roles)}")
        return contrastive(settings.mu) if settings.combine == "contrastive" else realigned(settings.realign), {}
    function, source = _load_function(settings.combine)
    _check_function(function, settings, len(roles), vocabulary)
    return custom(settings.combine, source, settings.level, function), {"combine": source}


def proposer(name: str, pair: Pair) -> int:
    """The index of the member that proposes first. Raises UserError for an unknown role."""
    roles = pair.collaboration
    if name == SMALLEST:
        return min(range(len(roles)), key=lambda i: pair.models[roles[i]].num_parameters())
    if name not in roles:
        raise UserError(f"proposer={name}: the pair {pair.name} has {', '.join(roles)}; or say smallest")
    return roles.index(name)


def weights_of(setting: float | Sequence[float] | None, roles: Sequence[str]) -> list[float]:
    """The weight of each model by the setting `weights`. Raises UserError if they do not fit the models."""
    count = len(roles)
    if setting is None:
        return [1 / count] * count
    if isinstance(setting, float | int):
        if count != 2:
            raise UserError(f"weights={setting}: a number is for two models; give {count}: {', '.join(roles)}")
        if not 0 <= setting <= 1:
            raise UserError(f"weights={setting}: the weight of the first model must be between 0 and 1")
        return [setting, 1 - setting]
    weights = list(setting)
    if len(weights) != count:
        raise UserError(
            f"weights={setting}: {len(weights)} weights for {count} models; give one each: {', '.join(roles)}"
        )
    if min(weights) < 0 or not math.isclose(sum(weights), 1, abs_tol=TOLERANCE):
        raise UserError(f"weights={setting}: they must be 0 or more and sum to 1, not to {sum(weights):g}")
    return [weight / sum(weights) for weight in weights]


def _load_function(text: str) -> tuple[Function, str]:
    """Import a user's function, `module:function` or `FILE.py:function`; returns it and a hash of its file.

    A module must be installed or on PYTHONPATH; a file of that name in the current folder is never taken for it. Raises
    UserError, before anything is imported, unless the command line names the function.
    """
    place, colon, name = text.rpartition(":")
    if not (place and colon and name):
        raise UserError(f"combine={text}: there are {', '.join(KINDS)}, or write module:function or FILE.py:function")
    permissions.check_entry_point(text, f"combine={text}")
    try:
        function: Callable[..., Any] = getattr(own.import_module(place), name)
    except Exception as error:  # a module may fail in any way
        hint = f"; for the file here write combine={place}.py:{name}" if Path(f"{place}.py").is_file() else ""
        raise UserError(f"combine={text}: cannot be imported ({' '.join(str(error).split())}){hint}") from None
    if not callable(function):
        raise UserError(f"combine={text}: {name} is not a function")
    file = ""
    try:
        file = inspect.getfile(inspect.getmodule(function) or function)
        source = Path(file).read_bytes()
    except (TypeError, OSError):
        source = text.encode()
    permissions.tell(f"combine: {text} from {file or 'no file'}")
    return function, short_hash(source)


def _check_function(function: Function, settings: Combining, count: int, vocabulary: int) -> None:
    """Try a user's function once, on rows of made-up logits or probabilities [3, V]."""
    text = settings.combine
    rng = torch.Generator().manual_seed(0)
    sharpness = torch.tensor([[0.1], [4.0], [20.0]])  # from nearly even to nearly certain
    rows = [sharpness * torch.randn(3, vocabulary, generator=rng) for _ in range(count)]
    rows = rows if settings.level == "logits" else [row.softmax(-1) for row in rows]
    arguments = [row.clone() for row in rows]
    try:
        r: Any = function(arguments)
    except Exception as error:  # a user's function may raise anything
        reason = " ".join(str(error).split())
        raise UserError(f"combine={text} failed on {count} tensors [3, {vocabulary}]: {reason}") from None
    if not all(torch.equal(row, argument) for row, argument in zip(rows, arguments, strict=True)):
        raise UserError(f"combine={text} changes the tensors that it is given in place; return a new one")
    if not isinstance(r, Tensor) or r.shape != rows[0].shape:
        what = tuple(r.shape) if isinstance(r, Tensor) else type(r).__name__
        raise UserError(f"combine={text} must return a tensor [3, {vocabulary}] of {count} such; it returned {what}")
    if not r.is_floating_point():
        raise UserError(f"combine={text} returned a tensor of {r.dtype}; return one of floating point")
    if r.isnan().any() or not r.max(-1).values.isfinite().all():
        raise UserError(f"combine={text} returned NaN, or rows without a largest finite value")
    if settings.level == "logits":
        return
    if float(r.min()) < 0:
        raise UserError(f"combine={text} returned a negative probability ({float(r.min()):.3g})")
    total = r.double().sum(-1)
    if not torch.allclose(total, torch.ones_like(total), atol=TOLERANCE):
        raise UserError(
            f"combine={text} returned probabilities that sum to {float(total[0]):.4g}, not to 1; if it combines "
            "logits, set level=logits"
        )
