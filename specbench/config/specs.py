"""What YAML files and the command line may hold: pairs, methods, tasks and suites, as validated, immutable settings."""

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from specbench.base.errors import UserError
from specbench.base.hashes import short_hash

# Ways to compute forwards; auto is what suits here.
RUNTIMES = ("eager", "static", "graph", "openvino", "llamacpp", "auto")
BATCHED = ("eager", "static")  # those that compute several texts at once
GGUF = ".gguf"  # the ending of a model that is one file
SERVER = "server"  # as `MethodSpec.method`: another engine, over HTTP
ENTRY = "entry-point:"  # before the name of one, in `MethodSpec.method`
BUNDLED = "bundled:"
PACKAGED, CACHED = "package:", "cache:"  # a GGUF file in an installed package, or in specbench's cache
Scheme = Literal["int8", "int4", "fp8"]
WEIGHTS = get_args(Scheme)  # what weights can be quantised to on loading
MOST_VARIANTS = 1000  # methods of one run, by all combinations of their settings' values


class Settings(BaseModel):
    """Base of everything that is read from YAML or the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: Any, checked: ValidationInfo) -> Any:
        """Refuse true and false where a number is meant, which pydantic would take for 1 and 0."""
        kinds = cls.model_fields[str(checked.field_name)].annotation
        if isinstance(value, bool) and {kinds, *get_args(kinds)} & {int, float} and bool not in get_args(kinds):
            raise PydanticCustomError("number", "input should be a number")
        return value


class ModelSpec(Settings):
    model: str = Field(description="hub name, folder, GGUF file, package:NAME/FILE.gguf, or bundled:NAME")
    revision: str = "main"
    sha256: str | None = Field(default=None, description="of a GGUF file; another one is refused")
    obtain: str = Field(default="", description="the command that brings a GGUF file, named where it is missing")
    dtype: str = "bfloat16"
    adapter: str | None = Field(default=None, description="LoRA adapters: folder or hub name")
    merge: bool = Field(default=True, description="add the adapters to the weights on loading; false: keep them apart")
    layers: int | None = Field(default=None, ge=1, description="only its first ones, before its final norm and output")
    weights: Scheme | None = Field(default=None, description="quantise on loading, but for the output layer")
    group: int | None = Field(
        default=None, ge=1, description="inputs that share a scale in int4; default: 128, if it fits"
    )


class MemberSpec(ModelSpec):
    """A model of a collaboration."""

    role: str | None = Field(default=None, description="its name; target and draft are called so")
    gamma: int | None = Field(default=None, ge=1, description="tokens that it proposes at a time (γ)")


class PairSpec(Settings):
    name: str
    description: str
    paper: str = ""
    target: ModelSpec
    draft: ModelSpec | None = None
    members: tuple[MemberSpec, ...] = Field(
        default=(), description="those that decode together; default: draft, target"
    )
    draft_device: str | None = Field(
        default=None, description="where draft models and heads are, such as cpu or cuda:1; default: with the target"
    )

    @field_validator("draft", mode="before")
    @classmethod
    def _of_target(cls, draft: Any, checked: ValidationInfo) -> Any:
        """`{of: target, weights: int4}`, a target that drafts for itself, as a model of its own."""
        target = checked.data.get("target")
        if not (isinstance(draft, Mapping) and "of" in draft and target):
            return draft
        changes = {key: value for key, value in draft.items() if key != "of"}
        made = target.model_dump(exclude_unset=True) | changes
        if draft["of"] != "target" or made == target.model_dump(exclude_unset=True):
            raise ValueError("next to `of: target`, say what is different, such as `weights: int4`")
        return made

    @property
    def bundled(self) -> bool:
        """True if all models come with the package; such a pair runs the bundled counterparts of tasks."""
        return all(spec.model.startswith(BUNDLED) for spec in (self.target, self.draft, *self.members) if spec)

    @property
    def models(self) -> dict[str, ModelSpec]:
        """Every model once, by role: target, draft, and the members that are neither."""
        return self._pair | self.collaboration

    @property
    def collaboration(self) -> dict[str, ModelSpec]:
        """The models that decode together, by role, in order.

        A member whose stated fields are all the target's (or the draft's) is that model.

        Raises:
            UserError: two models have the same role.
        """
        if not self.members:
            return {role: self._pair[role] for role in ("draft", "target") if role in self._pair}
        models: dict[str, ModelSpec] = {}
        for number, member in enumerate(self.members, 1):
            stated = member.model_dump(include=member.model_fields_set & set(ModelSpec.model_fields))
            same = [role for role, model in self._pair.items() if stated.items() <= model.model_dump().items()]
            if same and member.role not in (None, same[0]):
                raise UserError(
                    f"{self.name}: the member {member.role!r} is the pair's {same[0]}, which is its role; leave `role` "
                    "out"
                )
            role = same[0] if same else member.role or f"member{number}"
            model = self._pair[role] if same else ModelSpec(**stated)
            if role in models or self._pair.get(role, model) != model:
                raise UserError(f"{self.name}: two models have the role {role!r}; give each member its own")
            models[role] = model
        return models

    @property
    def _pair(self) -> dict[str, ModelSpec]:
        return {"target": self.target, **({"draft": self.draft} if self.draft else {})}


class Setting(Settings):
    value: Any
    source: str = "user"


class MethodSpec(Settings):
    """`name` labels the rows; `method` is the implementation in methods/."""

    name: str
    description: str = ""
    paper: str = ""
    method: str
    baseline: str = Field(default="vanilla", description="the method that its speedups are against by default")
    settings: dict[str, Setting] = {}

    @property
    def values(self) -> dict[str, Any]:
        return {key: setting.value for key, setting in self.settings.items()}

    @property
    def identity(self) -> str:
        """Implementation and settings: two methods that agree in them are the same, whatever their names."""
        return json.dumps([self.method, self.values], sort_keys=True)

    @property
    def digest(self) -> str:
        """A hash of `identity`: 16 hexadecimal digits."""
        return short_hash(self.identity)


def is_own(method: str) -> bool:
    """True if a `MethodSpec.method` is a user's file or an entry point."""
    return method.endswith(".py") or method.startswith(ENTRY)


class TaskInfo(Settings):
    """What specbench knows of an lm-eval task besides its YAML (suites/tasks/index.yaml)."""

    description: str
    hub: str | None  # None: bundled
    data: str | None
    metric: str = Field(description="the headline figure, as lm-eval's `name,filter`")
    max_new_tokens: int
    counterpart: str | tuple[str, ...] | None = None
    calibration: str | None = Field(default=None, description="the split that calibration may use")
    runs_code: bool = Field(default=False, description="scored by running what models wrote (unsafe_code of its YAML)")

    @property
    def counterparts(self) -> tuple[str, ...]:
        """The bundled tasks that stand in for this one: several where it is a mixture."""
        return (self.counterpart,) if isinstance(self.counterpart, str) else self.counterpart or ()


class TaskLine(Settings):
    task: str
    fewshot: int | None = Field(default=None, ge=0)
    same_shots: bool = Field(default=False, description="the first examples for all documents, not some drawn for each")
    max_new_tokens: int | None = Field(default=None, ge=1)
    file: str | None = Field(default=None, description="of a user's own task: the path of its YAML")
    own: TaskInfo | None = Field(default=None, description="what is known of a task that index.yaml does not have")
    group: str | None = Field(default=None, description="lm-eval's group whose score weighs it by its documents")


class MethodLine(Settings):
    """A method of a suite: with some settings changed, and a variant for every combination of those in `sweep`."""

    method: str
    settings: dict[str, Any] = {}
    sweep: dict[str, tuple[Any, ...]] = {}


class SamplingSpec(Settings):
    """How tokens are drawn from target and draft; temperature 0 is greedy."""

    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0, description="0 is off")
    top_p: float = Field(default=1.0, gt=0, le=1, description="1 is off")
    min_p: float = Field(default=0.0, ge=0, lt=1, description="0 is off")
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False, description="1 is off")
    presence_penalty: float = Field(default=0.0, allow_inf_nan=False, description="0 is off")
    frequency_penalty: float = Field(default=0.0, allow_inf_nan=False, description="0 is off")

    @property
    def name(self) -> str:
        """`greedy`, or the temperature with the cuts that are on; and the penalties that are."""
        cuts = f" top-k={self.top_k}" * (self.top_k > 0) + f" top-p={self.top_p:g}" * (self.top_p < 1)
        cuts += f" min-p={self.min_p:g}" * (self.min_p > 0)
        penalties = {"repetition": (self.repetition_penalty, 1), "presence": (self.presence_penalty, 0)}
        penalties |= {"frequency": (self.frequency_penalty, 0)}
        on = "".join(f" {name}={value:g}" for name, (value, off) in penalties.items() if value != off)
        return (f"T={self.temperature:g}{cuts}" if self.temperature else "greedy") + on


class Constraint(NamedTuple):
    """What an answer must be: text under a JSON schema, of a regular expression, or of a grammar in Lark's form."""

    kind: str
    text: str


class ConstraintSpec(Settings):
    """What all answers of a run must be, or where each document says so."""

    kind: Literal["schema", "regex", "lark"]
    text: str | None = None
    field: str | None = Field(default=None, description="of the documents, with a schema for each, instead of `text`")
    draft: bool = Field(default=False, description="draft models are constrained, too; as engines do not")

    @property
    def name(self) -> str:
        """As tables call it."""
        what = f"field {self.field}" if self.text is None else short_hash(self.text)[:6]
        return f"{self.kind} {what}" + ", drafts too" * self.draft


class SuiteSpec(Settings):
    name: str
    description: str
    paper: str = ""
    tasks: tuple[TaskLine, ...] = Field(min_length=1)
    limit: int | None = Field(default=None, ge=1)
    sampling: SamplingSpec = SamplingSpec()
    max_length: int | None = Field(default=None, ge=2, description="tokens of prompt and answer together")
    chat_template: bool = Field(default=False, description="wrap prompts in the tokenizer's chat template")
    methods: tuple[MethodLine, ...] = Field(
        default=(), max_length=MOST_VARIANTS, description="run if no method is named"
    )
