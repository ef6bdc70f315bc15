"""What the commands `show` and `compare` do: from run folders to a table, its caption and what it says in words."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from specbench import compare as comparison
from specbench import metrics
from specbench.config import UserError
from specbench.console import console
from specbench.records import write_frame
from specbench.report import tables
from specbench.report.words import sentences
from specbench.stored import StoredRun


def show(folder: Path, format: str) -> pd.DataFrame:
    """Print the table of one run; returns its summary."""
    return compare([folder], format)


def compare(
    folders: Sequence[Path],
    format: str,
    by: str = "task",
    sort: str | None = None,
    columns: Sequence[str] = (),
    allowed: Sequence[str] = (),
    out: Path | None = None,
) -> pd.DataFrame:
    """Print the rows of several runs in one table, or write them to `out`; returns them.

    Raises UserError if the runs cannot be compared, or for an unknown column.
    """
    if format == "parquet" and not out:
        raise UserError("--format parquet is no text; say where it goes: --out FILE.parquet")
    runs = [StoredRun(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    measured = comparison.measured(runs, allowed, with_depths=by == "depth")
    summary = comparison.summary(measured)
    if sort:
        summary = tables.sort(summary, sort)
    if by == "depth":
        shown = comparison.depth_table(measured)
        text = "" if format == "parquet" else tables.render_depths(shown, format, console.width)
    else:
        shown = tables.raw_columns(summary, columns)
        text = "" if format == "parquet" else tables.render(summary, format, console.width, columns, by)
    notes = [*caption(runs, summary, measured.mismatches), *([] if by == "depth" else legend(runs[0].plan.baseline))]
    said = [] if by == "depth" else sentences(summary)
    if format == "parquet":
        assert out
        write_frame(out, shown)
    elif out:
        out.write_text(_with_notes(text, [*said, *notes], format))
    else:
        _print(text, said, notes, format)
    if out:
        console.print(f"written: {out}", highlight=False, soft_wrap=True)
    return summary


def caption(runs: Sequence[StoredRun], summary: pd.DataFrame, mismatches: Sequence[str]) -> Iterator[str]:
    """What a reader must know beside the figures; what is wrong with them comes first."""
    yield from mismatches
    if summary.errors.any():
        failed = int(summary[summary.task != comparison.AVERAGE].errors.sum())
        yield f"failed samples: {failed}; their tracebacks are in samples.parquet"
    for row in summary[summary.drift.abs() > metrics.DRIFT_BOUND].drop_duplicates("task").itertuples():
        if row.task != comparison.AVERAGE:
            yield f"{row.task}: the baseline's time per token drifted by {row.drift:+.0%} within a run; repeat it"
    for run in runs:
        machine = run.manifest["environment"]
        if (machine.get("load") or 0) > (machine.get("cores") or float("inf")):
            yield f"the machine was busy at the start of {run.name} (load {machine['load']:.1f})"
    first = runs[0]
    machine, models = first.manifest["environment"], first.manifest["models"]
    where = f"{machine.get('cores')} cores of {machine.get('cpu')}" if machine["device"] == "cpu" else machine["device"]
    setups = [" ".join(setup) for setup in summary[comparison.SETUP].drop_duplicates().to_numpy()]
    dtype = models["target"]["dtype"] if models else "dtype not told"
    documents = summary[summary.task != comparison.AVERAGE].documents.max() if len(summary) else 0
    yield f"{', '.join(setups)}; {dtype}, {where or 'machine not told'}, up to {documents:.0f} documents a task"


def legend(baseline: str | None) -> Iterator[str]:
    """What the columns of the table mean."""
    if baseline:
        yield "score (± standard error), accept and α in %; p: of no difference from the baseline's score"
        yield (
            f"speedup: decode time per token of {baseline} over the method's, on the same documents, with its 95 % "
            "interval; = marks one that holds 1"
        )


def _print(text: str, said: Sequence[str], notes: Sequence[str], format: str) -> None:
    if format in ("csv", "json"):
        sys.stdout.write(text.rstrip() + "\n")
        for line in notes:
            if line.startswith("MISMATCH"):
                print(line, file=sys.stderr)
    elif format == "table":
        sys.stdout.write(text.rstrip() + "\n")
        sys.stdout.flush()
        for line in ["", *said]:
            console.print(line, highlight=False, markup=False)
        for line in notes:
            console.print(line, style="dim", highlight=False, markup=False)
    else:
        sys.stdout.write(_with_notes(text, [*said, *notes], format))


def _with_notes(text: str, notes: Sequence[str], format: str) -> str:
    """A text with its caption: lines of Markdown, comments of LaTeX; data formats have no place for one."""
    if format in ("csv", "json"):
        return text.rstrip() + "\n"
    before = {"latex": "% ", "md": "- "}.get(format, "")
    return f"{text.rstrip()}\n\n" + "".join(f"{before}{line}\n" for line in notes)
