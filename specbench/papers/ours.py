"""What our runs measured, on each of their pairs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from specbench import config
from specbench.analysis import pooled
from specbench.analysis.alike import method_labels
from specbench.config import MethodSpec, PairSpec, UserError
from specbench.papers.on_pair import MISSING, FromFiles, OnPair
from specbench.papers.published import Figure, Paper, read_figures, with_values
from specbench.papers.texts import Cell
from specbench.results.stored import StoredRun


class Ours:
    """What runs measured, and the figures that files have for their pairs.

    `pair` is for papers that name no bundled pairs; by default the only pair that was run, and UserError if there are
    several. `files` are tidy CSV files of figures that come from no run, with our names of pairs and tasks; if two have
    the same figure, the later one counts.
    """

    def __init__(
        self,
        runs: Sequence[StoredRun],
        allowed: Sequence[str] = (),
        files: Sequence[Path] = (),
        pair: PairSpec | None = None,
    ) -> None:
        pairs = {run.plan.pair.name: run.plan.pair for run in runs}
        if pair is None and len(pairs) != 1:
            raise UserError(f"tables need runs of one pair; these are of {', '.join(sorted(pairs)) or 'none'}")
        self.default = pair or next(iter(pairs.values()))
        self.figures = [
            (figure, path)
            for path in sorted(files, key=lambda path: (path.stat().st_mtime, path.name))
            for figure in read_figures(path)
        ]
        self._on = {
            name: of_runs(name, self.default, [r for r in runs if r.plan.pair.name == name], allowed, self.figures)
            for name in pairs
        }

    @property
    def pair(self) -> str:
        return self.default.name

    @property
    def pairs(self) -> list[str]:
        """The pairs that were run."""
        return list(self._on)

    def on(self, paper: Paper, figure: Figure) -> OnPair | None:
        """What was measured on our pair that corresponds to a figure's."""
        return self._on.get(paper.pair_of(figure, self.default) or "")

    def of_table(self, paper: Paper, table: int) -> Iterator[OnPair]:
        """Our pairs that correspond to a table's, in the table's order."""
        names = dict.fromkeys(paper.pair_of(figure, self.default) for figure in paper.figures(table))
        return (self._on[name] for name in names if name in self._on)

    def tasks(self, paper: Paper, table: int, label: str) -> tuple[str, ...]:
        """Our tasks that correspond to a paper's on one of the table's pairs, as OnPair.tasks."""
        return next((tasks for pair in self.of_table(paper, table) if (tasks := pair.tasks(paper, label))), ())

    def every_document(self) -> pd.DataFrame:
        """What all verdicts rest on: counts, seconds and the score of every document of every method, pass by pass."""
        return pd.concat([pair.every_document() for pair in self._on.values()], ignore_index=True)

    def of_files(self, paper: Paper, figure: Figure) -> Cell | None:
        """Our figure as a file has it; None if none has."""
        pair = self.on(paper, figure)
        return pair.of_file(paper, figure) if pair else None

    def cell(self, paper: Paper, figure: Figure) -> Cell:
        """Our figure in the unit and with the digits of the printed one: from runs, else from a file."""
        name = paper.pair_of(figure, self.default)
        if name is None:
            return Cell(MISSING, reason=f"{figure.pair}: no bundled pair stands for it")
        pair = self._on.get(name)
        return pair.cell(paper, figure) if pair else Cell(MISSING, reason=f"{name}: not the pair of any of these runs")


def of_runs(
    pair: str, default: PairSpec, runs: Sequence[StoredRun], allowed: Sequence[str], figures: FromFiles
) -> OnPair:
    """What runs of one pair measured. Raises UserError for runs that do not compare."""
    names: dict[str, str] = {}
    sources: dict[tuple[str, str, str], list[str]] = {}
    kept: dict[str, str] = {}
    for run, labels in zip(runs, method_labels(runs), strict=True):
        for spec in run.plan.methods:
            names[spec.identity] = labels[spec.name]
            kept[labels[spec.name]] = name_of(spec)
            for line in run.plan.tasks:
                sources.setdefault((run.sampling, line.task, labels[spec.name]), []).append(run.name)
    on_pair = OnPair(pair, default, pooled.measured(runs, allowed), figures, [run.name for run in runs], sources)
    on_pair.labels, on_pair.kept = names, kept
    return on_pair


def name_of(spec: MethodSpec) -> str:
    """The name by which stored documents know a method: that of its settings, which `--set` leaves out of its own."""
    base = spec.name.partition("[")[0]
    if base not in config.names("methods") or (known := config.load_method(base)).values.keys() != spec.values.keys():
        return spec.name
    changed = [key for key, value in spec.values.items() if value != known.values[key]]
    return spec.name if all(f"{key}=" in spec.name for key in changed) else with_values(base, spec.values, "").name
