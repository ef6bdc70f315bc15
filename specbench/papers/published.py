"""The papers' own figures: their tables as tidy CSV, and how their labels map onto our names."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from specbench import config
from specbench.base.untrusted import parse_yaml, read_text, read_yaml
from specbench.config import PACKAGE, MethodSpec, PairSpec, SamplingSpec, Setting, Settings, UserError

# Next to the package in a checkout, inside it when installed from a wheel.
FOLDER = next(
    (p for p in (PACKAGE.parent / "results" / "published", PACKAGE / "published_figures") if p.exists()),
    PACKAGE / "published_figures",
)
CONTEXT = ("gpu", "baseline")  # settings that say where a figure was measured, not what was measured
MOST = 2**24  # bytes of a table, at most
DECODING = "decoding"  # a setting that says how texts were drawn, where the paper has no temperatures


class MethodChoice(Settings):
    """A method of ours by name, with some of its settings.

    `by_task` has those that a paper chose for each data set: for a task of ours, on its validation documents.
    """

    method: str
    settings: dict[str, Any] = Field(default_factory=dict)
    by_task: dict[str, dict[str, Any]] = Field(default_factory=dict)
    note: str = ""  # how it differs from what the paper measured; verdicts on it say so
    file: str | None = None  # the setting that names a file; without that file the choice is not possible

    @property
    def possible(self) -> bool:
        return self.file is None or Path(self.settings[self.file]).is_file()


class MethodRef(Settings):
    """How we run what a paper's label stands for.

    `by_pair` has other choices for some of our pairs, by name: settings that were chosen on a pair's own validation
    documents, or, without a `method`, what only these pairs have.
    """

    method: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    by_pair: dict[str, MethodChoice] = Field(default_factory=dict)

    def on(self, pair: str) -> MethodChoice | None:
        """The choice for a pair of ours, if there is one."""
        general = MethodChoice(method=self.method, settings=self.settings) if self.method else None
        return self.by_pair.get(pair, general)


class SettingName(Settings):
    """Our name of a setting of a paper's figures, and our values for the printed ones that we write otherwise."""

    name: str
    values: dict[str, Any] = Field(default_factory=dict)


class Gain(Settings):
    """How much larger a method's `metric` is than that of the method `over`."""

    metric: str
    over: str


class TableInfo(Settings):
    title: str
    lost: list[str] = Field(default_factory=list)  # what is missing in the text of the paper
    missing: list[str] = Field(default_factory=list)  # why specbench has no figures of its own for some of its cells
    projected: list[str] = Field(default_factory=list)  # metrics that files have from a projection of recorded rounds
    baseline: str | None = None  # of this table's speedups, if it is not the paper's baseline
    unranked: dict[str, str] = Field(default_factory=dict)  # methods that orders leave out, with the reason
    needs: str | None = None  # what nothing here has, such as an NPU; none of its cells and claims is measured then


class Claim(Settings):
    """`higher` has a larger `metric` than `lower` in a table, on all of its tasks or on `tasks`.

    Two rows of one method differ in their settings, as printed: `higher_setting` and `lower_setting`.
    """

    table: int
    text: str
    metric: str
    higher: str
    lower: str
    higher_setting: str | None = None
    lower_setting: str | None = None
    tasks: list[str] | None = None
    without: list[str] = Field(default_factory=list)  # tasks of ours that are left out, also of a mixture
    loss: bool = False  # the claim is that `lower` loses accuracy; its collapse is what is claimed, and voids nothing
    same_rounds: bool = False  # the claim is about what the same rounds cost, so decoding alike does not void it
    lower_with: dict[str, Any] = Field(
        default_factory=dict
    )  # at which `lower` is compared, where the table's own are unequal
    rivals: list[str] = Field(default_factory=list)  # variants of `lower`, the best of which counts
    needs: str | None = None  # what nothing here has, such as a target of 70B; the claim is not measured then


class CellClaim(Settings):
    """What a table's cells of one printed metric claim, all or `method`'s, where ours are single figures of files.

    `above` is what our figure must exceed, in the printed unit, with its whole interval. Without it, or without an
    interval, nothing tells how far a figure is from chance, and the claim is not judged. Cells without a setting in
    `judged` stand next to the others and are not judged either: there the claim can neither hold nor fail. Of a claim
    about what is so `everywhere`, the cells where it fails are named first: one is enough.
    """

    table: int
    text: str
    metric: str
    method: str | None = None
    above: float | None = None
    settings: list[str] | None = None  # as printed: only cells with one of these
    judged: list[str] | None = None  # as printed: where ours can show what is claimed; all of `settings` by default
    everywhere: bool = False
    note: str | None = None  # what ours do not have in common with the paper's
    missing: str | None = None  # why ours are of other tasks alone, where they are

    def counts(self, figure: "Figure") -> bool:
        return self.settings is None or figure.setting in self.settings

    def can_show(self, figure: "Figure") -> bool:
        return self.judged is None or figure.setting in self.judged


class Figure(Settings):
    """One cell of a paper's table; `value` as printed. Ours may have an interval, from `low` to `high`."""

    paper: str
    table: int
    pair: str
    task: str
    temperature: str
    method: str
    setting: str
    metric: str
    value: str
    unit: str
    low: str = ""
    high: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        pairs = (part.partition("=") for part in self.setting.split(";") if part)
        return {key: parse_yaml(value, f"setting {self.setting!r}") for key, _, value in pairs if key not in CONTEXT}

    @property
    def is_average(self) -> bool:
        return self.task.lower().rstrip(".") in ("avg", "average", "mean")

    def key(self, task: str) -> tuple[str, ...]:
        """Identifies the figure among those of all papers, with `task` in place of its task."""
        settings = json.dumps(self.settings, sort_keys=True, default=str)
        return self.paper, str(self.table), task, self.method, settings, self.metric


class Paper(Settings):
    """A paper's labels; null where specbench has no counterpart."""

    paper: str
    title: str
    arxiv: str = ""
    pairs: dict[str, str | None]
    # The bundled pairs that stand for printed ones, null: none does. A single pair stands for all that are not named.
    bundled: dict[str, str | None] = Field(default_factory=dict)
    suite: str | None = None
    tasks: dict[str, str | None]
    methods: dict[str, MethodRef | None]
    # Settings that we call otherwise; null for those that only repeat the method's label.
    settings: dict[str, SettingName | None] = Field(default_factory=dict)
    metrics: dict[str, str | None]
    gains: dict[str, Gain] = Field(default_factory=dict)
    sampling: SamplingSpec = SamplingSpec()  # of figures without a temperature
    decoding: dict[str, SamplingSpec] = Field(default_factory=dict)  # of those with a setting `decoding`, by its value
    baseline: str
    tables: dict[int, TableInfo]
    claims: list[Claim]
    cell_claims: list[CellClaim] = Field(default_factory=list)

    def figures(self, table: int) -> list[Figure]:
        """The cells of a table, in the paper's order; none for a table without numbers."""
        path = FOLDER / f"{self.paper}-table{table}.csv"
        return read_figures(path) if path.exists() else []

    def sampling_of(self, figure: Figure) -> SamplingSpec:
        """How a figure's texts were drawn: by its own temperature, else as the paper says for its kind, or for all."""
        if figure.temperature:
            return SamplingSpec(temperature=float(figure.temperature))
        return self.decoding.get(figure.settings.get(DECODING, ""), self.sampling)

    def pair_of(self, figure: Figure, pair: PairSpec) -> str | None:
        """Our pair that corresponds to a figure's: `pair`, or if that is bundled, the one that stands for the printed.

        `pair` stands for printed ones that `bundled` does not name. None if no bundled pair stands for it.
        """
        return self.bundled.get(figure.pair, pair.name) if pair.bundled else pair.name

    def choice(self, label: str, pair: str) -> MethodChoice | None:
        """What a label stands for on a pair of ours; None if this version does not have it."""
        ref = self.methods.get(label)
        chosen = ref.on(pair) if ref else None
        return chosen if chosen and chosen.possible and chosen.method in config.names("methods") else None

    def lacking(self, figure: Figure, pair: str) -> str:
        """Why a figure's method cannot be run on a pair of ours."""
        ref = self.methods.get(figure.method)
        chosen = ref.on(pair) if ref else None
        if chosen is None:
            return f"{figure.method}: nothing here stands for it"
        if not chosen.possible:
            return f"{figure.method}: its {chosen.file} is not trained here"
        if chosen.method not in config.names("methods"):
            return f"{figure.method}: not a method of this version"
        return f"{figure.method} with {figure.setting}: no setting of ours"

    def notes(self, claim: Claim, pair: str) -> list[str]:
        """How what a claim compares differs, on a pair of ours, from what the paper measured."""
        refs = [ref for ref in self.methods.values() if ref]
        chosen = [choice for ref in refs if (choice := ref.on(pair)) and choice.method in (claim.higher, claim.lower)]
        return [choice.note for choice in chosen if choice.note]

    def rivals(self, claim: Claim) -> list[MethodSpec]:
        """What a claim compares with that is in no row of its table: `lower` at equal settings, and its variants."""
        return [
            *([with_values(claim.lower, claim.lower_with, self.paper)] if claim.lower_with else []),
            *(config.load_method(name) for name in claim.rivals),
        ]

    def method_spec(self, figure: Figure, pair: str, task: str = "") -> MethodSpec | None:
        """The method of a figure with its settings, on a pair and a task of ours; None if we cannot run it."""
        chosen = self.choice(figure.method, pair)
        if chosen is None:
            return None
        settings = {**chosen.settings, **chosen.by_task.get(task, {}), **self._settings(figure)}
        if not settings.keys() <= config.load_method(chosen.method).settings.keys():
            return None
        return with_values(chosen.method, settings, self.paper)

    def _settings(self, figure: Figure) -> dict[str, Any]:
        """A figure's settings by our names."""
        settings = {}
        for key, value in figure.settings.items():
            ours = self.settings.get(key, SettingName(name=key))
            if ours and not (key == DECODING and value in self.decoding):
                settings[ours.name] = ours.values.get(str(value), value)
        return settings


def with_values(name: str, settings: Mapping[str, Any], source: str) -> MethodSpec:
    """A method by name with these settings, and its own for the others."""
    spec = config.load_method(name)
    changed = {key: Setting(value=v, source=source) for key, v in settings.items() if v != spec.values[key]}
    return config.variant(spec, changed)


def read_figures(path: Path) -> list[Figure]:
    """The figures in a tidy CSV file. Raises UserError for a file of another form."""
    try:
        text = io.StringIO(read_text(path, MOST, "write it again"), newline="")
        rows = list(csv.DictReader(text, restkey="one more column"))
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file ({error}); write it again") from None
    figures = [config.validated(Figure, row, str(path)) for row in rows]
    for figure in figures:
        numbers = {"value": figure.value, "temperature": figure.temperature, "low": figure.low, "high": figure.high}
        for name, value in numbers.items():
            try:
                if value or name == "value":
                    float(value)
            except ValueError:
                raise UserError(f"{path}: {figure.metric} has the {name} {value!r}; write a number") from None
        _ = figure.settings  # raises UserError for settings that cannot be read
    return figures


def papers(names: list[str] | None = None) -> list[Paper]:
    """The papers by name, or all of them. Raises UserError for an unknown one."""
    known = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
    if not known:
        raise UserError("the published figures are not installed; run from a checkout of the project")
    for name in names or []:
        if name not in known:
            raise UserError(f"no published tables of {name!r}; there are {', '.join(known)}")
    return [config.validated(Paper, read_yaml(known[name]), known[name].name) for name in names or known]
