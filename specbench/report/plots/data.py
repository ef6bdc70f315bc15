"""What a plot is drawn from: runs with common labels, a style for each method, and panels in a common order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from specbench.analysis import compare, pooled
from specbench.analysis.alike import method_labels, pair_labels
from specbench.analysis.compare import AVERAGE
from specbench.analysis.oracles import is_bound
from specbench.analysis.pooled import SETUP, Measured
from specbench.config import UserError
from specbench.report.notes import condition
from specbench.report.plots.style import Style, styles
from specbench.results.stored import StoredRun

DRAFTING = "`specbench run --method sps --suite pocket` makes a run that can"


@dataclass(frozen=True)
class PlotData:
    """Comparable runs, read once for a plot."""

    runs: Sequence[StoredRun]
    labels: Sequence[dict[str, str]]  # of the methods of each run
    measured: Measured
    styles: dict[str, Style]  # by label, the baselines' first

    @cached_property
    def summary(self) -> pd.DataFrame:
        return compare.summary(self.measured)

    @cached_property
    def bounds(self) -> set[str]:
        """The methods that know what only an oracle knows, by label."""
        pairs = zip(self.runs, self.labels, strict=True)
        return {labels[spec.name] for run, labels in pairs for spec in run.plan.methods if is_bound(spec)}

    @property
    def caption(self) -> str:
        """Pair, number type, machine and number of documents: what every image says of its figures."""
        return condition(self.runs[0], self.summary)

    @property
    def notes(self) -> list[str]:
        """What a reader must know next to the figures."""
        failed = int(self.measured.errors.sum())
        return [*self.measured.mismatches, *([f"{failed} failed samples are left out"] if failed else [])]

    def named(self, method: str) -> str:
        """A method's name in a legend."""
        return f"{method} (baseline)" if method in self.measured.baselines.values() else method


def read(runs: Sequence[StoredRun], allowed: Sequence[str], with_depths: bool) -> PlotData:
    """Read runs for a plot. Raises UserError if they do not compare, or one is not finished."""
    labels = method_labels(runs)
    measured = pooled.measured(runs, allowed, with_depths)
    methods = [label for of_run in labels for label in of_run.values()]
    baselines = [label for label in measured.methods if label in measured.baselines.values()]
    return PlotData(runs, labels, measured, styles(methods, baselines))


def panels(data: PlotData, rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """A title and its rows for each pair, sampling and (if rows have one) task, in the runs' order.

    Methods come in the order of their styles.
    """
    methods = {name: i for i, name in enumerate(data.styles)}
    rows = rows.sort_values("method", key=lambda names: names.map(methods), kind="stable")
    setups = dict.fromkeys(zip(pair_labels(data.runs), (run.sampling for run in data.runs), strict=True))
    named = [name for name in SETUP if rows[name].nunique() > 1] + ["task"] * ("task" in rows)
    for pair, sampling in setups:
        of_setup = rows[(rows.pair == pair) & (rows.sampling == sampling)]
        tasks = [*data.measured.metric, AVERAGE] if "task" in rows else [None]
        for part in (of_setup if task is None else of_setup[of_setup.task == task] for task in tasks):
            if len(part):
                yield ", ".join(part.iloc[0][named]), part


def drafted(data: PlotData, kind: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that drafted (D > 0). Raises UserError if there are none."""
    drafting = rows[rows.D > 0]
    if drafting.empty:
        names = ", ".join(run.name for run in data.runs)
        raise UserError(f"{kind} needs a method that drafts, and {names} has none; {DRAFTING}")
    return drafting
