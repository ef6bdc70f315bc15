"""Recipes: the settings that heads are trained with (suites/training/); the command line can change them."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from specbench import config
from specbench.base.untrusted import parse_value, read_mapping
from specbench.config import SUITES, MethodSpec, Setting, Settings, UserError, plugins

FOLDER = SUITES / "training"
Autocast = bool | Literal["auto"]


class Recipe(Settings):
    """The recipe of SpecDec++'s acceptance head (arXiv 2405.19715, sections 4.4, 5.1 and D.1)."""

    inputs: Literal["state", "state+confidence"] = Field(
        description="what the head reads: the draft's hidden state after the token, or also the log odds of q(d)"
    )
    depth: int = Field(ge=0, description="residual blocks of the head (D)")
    shared_blocks: bool = Field(description="all blocks share their weights")
    weight: float = Field(gt=0, allow_inf_nan=False, description="weight of rejections in the loss (w_rej)")
    mix: float = Field(ge=0, lt=1, description="share of the target's tokens in the text that the draft reads (r)")
    temperature: float = Field(ge=0, allow_inf_nan=False, description="of the target's responses; 0 is greedy")
    top_k: int = Field(ge=0, description="of the target's responses; 0: off")
    warped: bool = Field(description="acceptance under this temperature and top-k, not under the plain softmax")
    epochs: int = Field(ge=1, description="passes over the documents")
    batch: int = Field(ge=1, description="documents a step")
    learning_rate: float = Field(gt=0, allow_inf_nan=False, description="the highest, before it falls as a cosine")
    warmup: float = Field(ge=0, le=1, description="share of the steps in which the learning rate rises")
    weight_decay: float = Field(ge=0, allow_inf_nan=False, description="of AdamW")
    clip: float = Field(gt=0, description="largest norm of a step's gradient")
    patience: int = Field(ge=0, description="epochs without a better held-out KL before it stops; 0: never")


class LearnedRecipe(Settings):
    """What the recipes of heads share."""

    length: int = Field(ge=3, description="tokens of a document with its answer, at most; the rest is cut off")
    epochs: int = Field(ge=1, description="passes over the documents")
    batch: int = Field(ge=1, description="documents a step")
    learning_rate: float = Field(gt=0, allow_inf_nan=False, description="the highest, before it falls to 0")
    warmup: float = Field(ge=0, lt=1, description="share of the steps in which the learning rate rises")
    weight_decay: float = Field(ge=0, allow_inf_nan=False, description="of AdamW")


class AnsweredRecipe(LearnedRecipe):
    """What the recipes of heads share that learn from the target's own answers."""

    answers: int = Field(ge=1, description="answers of the target to each document; equal ones count once")
    temperature: float = Field(ge=0, allow_inf_nan=False, description="of the target's answers; 0 is greedy")


class UnrolledRecipe(AnsweredRecipe):
    """What the recipes of EAGLE's family share."""

    steps: int = Field(ge=1, description="draft steps that are trained, each from the head's own states")
    step_decay: float = Field(gt=0, le=1, description="weight of a step's loss relative to the step before it")
    clip: float = Field(gt=0, description="largest norm of a step's gradient")
    autocast: bool = Field(description="matrix products in bfloat16")


class EagleRecipe(UnrolledRecipe):
    """The recipe of EAGLE-3's draft head (arXiv 2503.01840, section 3.2 and the official code)."""

    draft_vocabulary: int = Field(ge=1, description="tokens that the head may draft: the most frequent of the answers")


class StateRecipe(UnrolledRecipe):
    """What the recipes of heads share that read the target's last state; that of Chimera's (arXiv 2402.15758)."""

    regression: float = Field(ge=0, description="weight of the smooth L1 distance to the target's next state")
    cross_entropy: float = Field(ge=0, description="weight of the cross-entropy with the target's distribution")
    distillation: float = Field(ge=0, description="weight of that over the target's likeliest tokens alone")
    top_k: int = Field(ge=1, description="how many tokens these are (K)")


class FeatureRecipe(StateRecipe):
    """The recipes of heads that go on with the target's last state: EAGLE, HASS, FSPAD, Dovetail (`training.eagle`)."""

    fuse: Literal["fc", "gated", "dgf"] = Field(
        description="how embedding and feature are fused: a linear layer (EAGLE), features gated by the token (FSPAD), "
        "or a gate between both (Dovetail)"
    )


class SlotRecipe(AnsweredRecipe):
    """What the recipes of block drafters share."""

    layers: int = Field(ge=1, description="layers of the head")
    block: int = Field(ge=2, description="tokens of a block, with the committed one that it begins with")
    anchors: int = Field(ge=1, description="blocks of a document in a pass, each after a random place of the answer")
    loss: Literal["tokens", "distillation"] = Field(
        description="cross-entropy of each slot with the text's token, or with the target's distribution"
    )
    decay: float = Field(gt=0, description="slot k weighs exp(-(k - 1) / decay)")
    clip: float = Field(gt=0, description="largest norm of a step's gradient")
    autocast: Autocast = Field(description="matrix products in bfloat16; auto: on a GPU")


class BlockRecipe(SlotRecipe):
    """The recipe of DFlash (arXiv 2602.06036), DFlare (2606.02091), and the trainers of others."""

    features: int = Field(ge=1, description="layers of the target whose outputs the head reads")


class DraftHeadsRecipe(AnsweredRecipe):
    """The recipe of Medusa's and Hydra's heads (arXiv 2401.10774, 2402.05109, and their official code)."""

    heads: int = Field(ge=1, description="heads, each of which says one token")
    layers: int = Field(ge=1, description="residual blocks of a head")
    output: Literal["own", "target"] = Field(
        description="output layers: of each head its own, which begins as the target's; or the target's for all"
    )
    loss: Literal["tokens", "distillation"] = Field(
        description="cross-entropy with the text's token, or with the target's distribution"
    )
    decay: float = Field(gt=0, le=1, description="weight of a head's loss relative to the head before it")
    last_rate: float = Field(ge=0, le=1, description="share of the learning rate that is left at the end")
    clip: float = Field(gt=0, description="largest norm of a step's gradient")


class ExitRecipe(AnsweredRecipe):
    """What the recipes of adapters after some of the target's layers share."""

    deepest: ClassVar[str]  # the setting that decides the last of them

    clip: float = Field(gt=0, description="largest gradient of a single weight")

    @abstractmethod
    def exits(self, layers: int) -> Sequence[int]:
        """How many of the target's `layers` come before each adapter, rising."""


class KangarooRecipe(ExitRecipe):
    """The recipe of Kangaroo's adapter (arXiv 2404.18911 and the official code)."""

    deepest = "exit"

    exit: int = Field(ge=1, description="layers of the target before the adapter")

    def exits(self, layers: int) -> Sequence[int]:
        return (self.exit,)


COLLECTING = ("mix", "temperature", "top_k", "warped")  # settings of `Recipe` that the collected data depends on


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
