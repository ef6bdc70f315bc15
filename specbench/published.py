"""The papers' own figures: result tables as tidy CSV, and how their labels map onto specbench's names."""

import csv
from typing import Any

import yaml
from pydantic import Field

from specbench import config
from specbench.config import PACKAGE, MethodSpec, Setting, Settings, UserError

# Beside the package in a checkout, inside it when installed from a wheel.
FOLDER = next(
    (p for p in (PACKAGE.parent / "results" / "published", PACKAGE / "published_figures") if p.exists()),
    PACKAGE / "published_figures",
)
CONTEXT = ("gpu", "baseline")  # settings of a figure that say where it was measured, not what was


class MethodRef(Settings):
    """How specbench runs what a paper's label stands for."""

    method: str
    settings: dict[str, Any] = Field(default_factory=dict)


class TableInfo(Settings):
    title: str
    lost: list[str] = Field(default_factory=list)  # what the text of the paper no longer tells
    baseline: str | None = None  # what this table's speedups are against, where it is not the paper's baseline


class Claim(Settings):
    """`higher` has a larger `metric` than `lower` in a table, on all of its tasks or on `tasks`."""

    table: int
    text: str
    metric: str
    higher: str
    lower: str
    tasks: list[str] | None = None


class Figure(Settings):
    """One cell of a paper's table; `value` as printed."""

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

    @property
    def settings(self) -> dict[str, Any]:
        pairs = (part.partition("=") for part in self.setting.split(";") if part)
        return {key: yaml.safe_load(value) for key, _, value in pairs if key not in CONTEXT}

    @property
    def is_average(self) -> bool:
        return self.task.lower().rstrip(".") in ("avg", "average", "mean")


class Paper(Settings):
    """A paper's labels; null where specbench has no counterpart."""

    paper: str
    title: str
    arxiv: str = ""
    pairs: dict[str, str | None]
    tasks: dict[str, str | None]
    methods: dict[str, MethodRef | None]
    metrics: dict[str, str | None]
    baseline: str
    tables: dict[int, TableInfo]
    claims: list[Claim]

    def figures(self, table: int) -> list[Figure]:
        """The cells of a table, in the paper's order; none for a table without numbers."""
        path = FOLDER / f"{self.paper}-table{table}.csv"
        if not path.exists():
            return []
        with open(path, newline="") as file:
            return [Figure.model_validate(row) for row in csv.DictReader(file)]

    def runs(self, label: str) -> bool:
        """Whether this version has the method of a label."""
        ref = self.methods.get(label)
        return ref is not None and ref.method in config.names("methods")

    def method_spec(self, figure: Figure) -> MethodSpec | None:
        """The method of a figure with its settings; None where specbench cannot run it."""
        ref = self.methods.get(figure.method)
        if ref is None or not self.runs(figure.method):
            return None
        spec = config.load_method(ref.method)
        settings = {**ref.settings, **figure.settings}
        if not settings.keys() <= spec.settings.keys():
            return None
        changed = {key: Setting(value=v, source=self.paper) for key, v in settings.items() if v != spec.values[key]}
        return config.variant(spec, changed)


def papers(names: list[str] | None = None) -> list[Paper]:
    """The papers by name, or all of them. Raises UserError for an unknown one."""
    known = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
    if not known:
        raise UserError("the published figures are not installed; run from a checkout of the project")
    for name in names or []:
        if name not in known:
            raise UserError(f"no published tables of {name!r}; there are {', '.join(known)}")
    return [
        config.validated(Paper, yaml.safe_load(known[name].read_text()), known[name].name) for name in names or known
    ]
