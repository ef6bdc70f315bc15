"""What all methods that draft from a model share: settings for the draft lengths and the draft's output layer."""

from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from specbench import config
from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.drafters import ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.speculate import Speculative
from specbench.engine.types import Combination, Sampling, Watch
from specbench.methods import code_hashes, module, names_with

if TYPE_CHECKING:
    from specbench.engine.models.draft_output import Output

FIXED = "fixed"
FULL = "full"


def bounded(name: str, limit: str) -> Any:
    """A validator of settings: `name` must not be more than `limit`, a setting before it."""

    def fits(cls: type[Base], value: int, info: ValidationInfo) -> int:
        most: int | None = info.data.get(limit)
        if most is not None and value > most:
            raise PydanticCustomError("bounds", f"{value} is more than {limit} ({most}); change one of them")
        return value

    return field_validator(name)(classmethod(fits))


def number_or_share(name: str) -> Any:
    """A validator of settings: `name` must be a number from 1 on, or a share of all, with a point."""

    def fits(cls: type[Base], value: int | float) -> int | float:
        if value < 1 if isinstance(value, int) else not 0 < value <= 1:
            raise PydanticCustomError("range", f"{value} is not a number from 1 on, nor a share up to 1.0")
        return value

    return field_validator(name)(classmethod(fits))


class DraftSettings(Base):
    """Settings of a method that drafts from a model."""

    gamma: int = Field(ge=1, description="draft tokens a round (γ); the most, where `length` chooses")
    length: str = Field(
        default=FIXED,
        description="who chooses the draft length: fixed, or a length method (such as specdecpp) or its YAML",
    )
    stop_at_eos: bool = Field(default=False, description="a draft ends after an end token")
    output: str = Field(
        default=FULL,
        description="the draft's output layer: full, or that of vocabtrim or slimspec, or of a YAML based on one",
    )


class LengthSettings(Base):
    """Settings of a length method."""

    longest: int = Field(ge=1, description="the most draft tokens a round")
    stop_at_eos: bool = Field(description="a draft ends after an end token")


class StopSettings(LengthSettings):
    """Settings of a length method that stops by a signal."""

    shortest: int = Field(ge=1, description="a draft has at least so many tokens")

    _fits = bounded("shortest", "longest")


class ChoiceSettings(LengthSettings):
    """Settings of a length method that chooses from a few lengths."""

    choices: tuple[int, ...] = Field(min_length=1, description="the lengths to choose from")

    @field_validator("choices")
    @classmethod
    def _fits(cls, choices: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        longest: int = info.data.get("longest", max(choices))
        if min(choices) < 1 or len(set(choices)) < len(choices) or max(choices) > longest:
            raise PydanticCustomError("choices", f"must be different lengths from 1 to longest ({longest})")
        return choices


class DraftedMethod(Speculative):
    """Base of methods with a drafter, which carry from text to text only what its length policy learns."""

    combination: Combination | None = None

    def check(self, sampling: Sampling) -> None:
        self.drafter.lengths.check(sampling)

    def inputs(self) -> dict[str, str]:
        return {**self.drafter.lengths.inputs(), **self.drafter.lengths.chosen_by, **self.hashes}

    def reset(self, task: str = "") -> None:
        self.drafter.lengths.reset()

    def state(self) -> Any:
        return self.drafter.lengths.state()

    def restore(self, state: Any) -> None:
        self.drafter.lengths.restore(state)


def model_drafter(settings: DraftSettings, pair: Pair, watch: Watch) -> ModelDrafter:
    """The pair's draft model, with the length policy and the output layer that the settings name.

    Raises UserError if `length` is no length method, or `output` no output layer.
    """
    lengths = Lengths()
    stop_at_eos = settings.stop_at_eos
    if settings.length != FIXED:
        spec = config.load_method(settings.length)
        method = module(spec.method)
        if not hasattr(method, "lengths"):
            choices = ", ".join(names_with("lengths"))
            raise UserError(f"length={settings.length}: {spec.method} chooses no lengths; these do: {choices}")
        policy = config.validated(method.Settings, spec.values, spec.name)
        if isinstance(policy, StopSettings) and policy.shortest > settings.gamma:
            raise UserError(f"length={settings.length} drafts at least {policy.shortest} tokens; gamma must be as many")
        lengths, stop_at_eos = method.lengths(policy, pair), stop_at_eos or policy.stop_at_eos
        lengths.chosen_by = {"length": spec.digest, **_code("length", spec)}
    eos_ids = pair.eos_ids if stop_at_eos else frozenset()
    if settings.output == FULL:
        return ModelDrafter(pair.session("draft", watch), lengths, eos_ids)
    return lighter_drafter(load_output(settings.output, pair), pair, watch, lengths, eos_ids)


def load_output(name: str, pair: Pair) -> "Output":
    """The draft model with the output layer of a method, by the method's name or its YAML."""
    spec = config.load_method(name)
    method = module(spec.method)
    if not hasattr(method, "output"):
        choices = ", ".join(names_with("output"))
        raise UserError(f"output={name}: {spec.method} is not an output layer; these are: {choices}")
    settings = config.validated(method.Settings, spec.values, spec.name)
    output: Output = pair.runtime.once((spec.method, spec.digest), lambda: method.output(settings, pair))
    return output._replace(hashes={"output": spec.digest, **_code("output", spec), **output.hashes})


def _code(setting: str, spec: config.MethodSpec) -> dict[str, str]:
    """The hash of an own method's file that a setting names, by a name of its own."""
    return {f"{setting} {name}": value for name, value in code_hashes(spec).items()}


def lighter_drafter(
    output: "Output",
    pair: Pair,
    watch: Watch,
    lengths: Lengths | None = None,
    eos_ids: frozenset[int] = frozenset(),
) -> ModelDrafter:
    """A drafter from the pair's draft model with another output layer.

    Its lengths hold the hashes of the layer, since drafters that wrap this one share its lengths.
    """
    lengths = lengths or Lengths()
    lengths.chosen_by = {**lengths.chosen_by, **output.hashes}
    return ModelDrafter(pair.session("draft", watch, output.model), lengths, eos_ids)
