"""Recipes: the settings that heads are trained with (suites/training/); the command line can change them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from specbench import config
from specbench.base.untrusted import parse_value, read_mapping
from specbench.config import SUITES, MethodSpec, Setting, Settings, UserError, plugins

FOLDER = SUITES / "training"
Autocast = bool | Literal["auto"]


class AdamWRecipe(Settings):
    """What the recipes of all trainings by AdamW in passes over documents share."""

    epochs: int = Field(ge=1, description="passes over the documents")
    batch: int = Field(ge=1, description="documents a step")
    learning_rate: float = Field(gt=0, allow_inf_nan=False, description="the highest, before it falls to 0")
    warmup: float = Field(ge=0, le=1, description="share of the steps in which the learning rate rises")
    weight_decay: float = Field(ge=0, allow_inf_nan=False, description="of AdamW")
    clip: float = Field(gt=0, description="largest norm of a step's gradient")


class LearnedRecipe(AdamWRecipe):
    """What the recipes of heads share."""

    length: int = Field(ge=3, description="tokens of a document with its answer, at most; the rest is cut off")
    warmup: float = Field(ge=0, lt=1, description="share of the steps in which the learning rate rises")


class AnsweredRecipe(LearnedRecipe):
    """What the recipes of heads share that learn from the target's own answers."""

    answers: int = Field(ge=1, description="answers of the target to each document; equal ones count once")
    temperature: float = Field(ge=0, allow_inf_nan=False, description="of the target's answers; 0 is greedy")


class UnrolledRecipe(AnsweredRecipe):
    """What the recipes of EAGLE's family share."""

    steps: int = Field(ge=1, description="draft steps that are trained, each from the head's own states")
    step_decay: float = Field(gt=0, le=1, description="weight of a step's loss relative to the step before it")
    autocast: Autocast = Field(description="matrix products in bfloat16; auto: on a GPU")


class EagleRecipe(UnrolledRecipe):
    """The recipe of EAGLE-3's draft head (arXiv 2503.01840, section 3.2 and the official code)."""

    draft_vocabulary: int = Field(ge=1, description="tokens that the head may draft: the most frequent of the answers")


def recipes() -> dict[str, Path]:
    """The files of all recipes by name; specbench's own win over those that installed packages bring."""
    return {path.stem: path for folder in (*reversed(plugins.recipes()), FOLDER) for path in folder.glob("*.yaml")}


def load_recipe(method: str, assignments: Iterable[str]) -> MethodSpec | None:
    """The recipe of a method, with the values of `assignments` (KEY=VALUE); None if the method has no recipe.

    Raises UserError for a setting that the recipe does not have.
    """
    path = recipes().get(method)
    if path is None:
        return None
    raw = {**read_mapping(path), "name": f"the recipe of {method}"}
    return config.override(config.validated(MethodSpec, raw, str(path)), dict(map(assignment, assignments)))


def assignment(text: str) -> tuple[str, Setting]:
    key, value = _parts("--recipe", text)
    return key, Setting(value=_parse("--recipe", text, value))


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Parse `KEY=V1,V2,…` into values by setting, each value once."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        key, values = _parts("--grid", text)
        parsed = [_parse("--grid", text, value) for value in values.split(",")]
        axes[key] = list(dict.fromkeys([*axes.get(key, []), *parsed]))
    return axes


def _parts(option: str, text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    if not (key and value):
        more = ",VALUE,…" if option == "--grid" else ""
        raise UserError(f"{option} {text!r}: write KEY=VALUE{more}, such as {option} depth={'1,2' if more else 2}")
    return key, value


def _parse(option: str, text: str, value: str) -> Any:
    parsed = parse_value(value, f"{option} {text!r}")
    if parsed is None or isinstance(parsed, list | dict):
        raise UserError(f"{option} {text!r}: cannot read the value {value!r}")
    return parsed
