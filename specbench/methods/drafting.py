"""What all methods share that draft from a model: how long their drafts are, and its output layer."""

from typing import Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from specbench import config
from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.decoding.combine import Combination
from specbench.decoding.draft_output import Output
from specbench.decoding.drafters import Drafter, ModelDrafter
from specbench.decoding.lengths import Lengths
from specbench.decoding.types import Sampling, Watch
from specbench.methods import module
from specbench.models import Pair

FIXED = "fixed"
FULL = "full"
LENGTHS = ("confidence", "cumulative", "entropy", "heuristic", "specdecpp", "bandit", "oracle")
OUTPUTS = ("vocabtrim", "slimspec")


class Drafting(Base):
    """Settings of a method that drafts from a model."""

    gamma: int = Field(ge=1, description="draft tokens a round (γ); where `length` chooses, the most")
    length: str = Field(
        default=FIXED,
        description="who chooses the draft length: fixed, or a length method (such as specdecpp) or its YAML",
    )
    stop_at_eos: bool = Field(default=False, description="a draft ends behind an end token")
    output: str = Field(
        default=FULL,
        description="the draft's output layer: full, or that of vocabtrim or slimspec, or of a YAML based on one",
    )


class Bounded(Base):
    """Settings of a length method."""

    longest: int = Field(ge=1, description="the most draft tokens a round")
    stop_at_eos: bool = Field(description="a draft ends behind an end token")


class Stopping(Bounded):
    """Settings of a length method that stops by a signal."""

    shortest: int = Field(ge=1, description="no stop before so many draft tokens")

    @field_validator("shortest")
    @classmethod
    def fits(cls, shortest: int, info: ValidationInfo) -> int:
        longest: int | None = info.data.get("longest")
        if longest is not None and shortest > longest:
            raise PydanticCustomError("bounds", f"{shortest} is more than longest ({longest}); change one of them")
        return shortest


class Drafted:
    """Base of methods with a drafter, which carry from text to text what its length policy learns, and no more."""

    drafter: Drafter
    combination: Combination | None = None

    def check(self, sampling: Sampling) -> None:
        self.drafter.lengths.check(sampling)

    def inputs(self) -> dict[str, str]:
        return {**self.drafter.lengths.inputs(), **self.drafter.lengths.chosen_by}

    def reset(self, task: str = "") -> None:
        self.drafter.lengths.reset()

    def state(self) -> Any:
        return self.drafter.lengths.state()

    def restore(self, state: Any) -> None:
        self.drafter.lengths.restore(state)


def model_drafter(settings: Drafting, pair: Pair, watch: Watch) -> ModelDrafter:
    """The pair's draft model with the draft lengths and the output layer of the settings.

    Raises UserError for what is no length method, or has no output layer.
    """
    lengths = Lengths()
    stop_at_eos = settings.stop_at_eos
    if settings.length != FIXED:
        spec = config.load_method(settings.length)
        chooser = module(spec.method)
        if not hasattr(chooser, "lengths"):
            raise UserError(
                f"length={settings.length}: {spec.method} chooses no lengths; these do: {', '.join(LENGTHS)}"
            )
        chosen = config.validated(chooser.Settings, spec.values, spec.name)
        if isinstance(chosen, Stopping) and chosen.shortest > settings.gamma:
            raise UserError(f"length={settings.length} drafts at least {chosen.shortest} tokens; gamma must be as many")
        lengths, stop_at_eos = chooser.lengths(chosen, pair), stop_at_eos or chosen.stop_at_eos
        lengths.chosen_by = {"length": spec.digest}
    eos_ids = pair.eos_ids if stop_at_eos else frozenset()
    if settings.output == FULL:
        return ModelDrafter(pair.session("draft", watch), lengths, eos_ids)
    return lighter_drafter(chosen_output(settings.output, pair), pair, watch, lengths, eos_ids)


def chosen_output(name: str, pair: Pair) -> Output:
    """The draft model with the output layer of a method, by the method's name or its YAML."""
    spec = config.load_method(name)
    chooser = module(spec.method)
    if not hasattr(chooser, "output"):
        raise UserError(f"output={name}: {spec.method} is no output layer; these are: {', '.join(OUTPUTS)}")
    found: Output = chooser.output(config.validated(chooser.Settings, spec.values, spec.name), pair)
    return found._replace(hashes={"output": spec.digest, **found.hashes})


def lighter_drafter(
    output: Output,
    pair: Pair,
    watch: Watch,
    lengths: Lengths | None = None,
    eos_ids: frozenset[int] = frozenset(),
) -> ModelDrafter:
    """A drafter from the pair's draft model with another output layer; its lengths tell the layer's hashes too.

    They, and not the drafter: drafters around this one share its lengths.
    """
    lengths = lengths or Lengths()
    lengths.chosen_by = {**lengths.chosen_by, **output.hashes}
    return ModelDrafter(pair.session("draft", watch, output.model), lengths, eos_ids)
