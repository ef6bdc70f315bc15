"""What the commands that read runs do: `show`, `compare`, `report` and `trace`."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from specbench import compare as comparison
from specbench import files, metrics
from specbench.config import UserError
from specbench.console import console, plain
from specbench.records import write_frame
from specbench.report import tables
from specbench.report.page import write_page
from specbench.report.trace_view import print_trace
from specbench.report.words import sentences
from specbench.stored import StoredRun, runtime_of
from specbench.texts import load_decode
from specbench.trace import trace as trace_of

FEW = 4  # baselines whose methods are told in a legend


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
    against: str | None = None,
) -> pd.DataFrame:
    """Print the rows of several runs in one table, or write them to `out`; returns them.

    Each method is set against its baseline, or all of them `against` one. Raises UserError if the runs cannot be
    compared, or for an unknown column or method.
    """
    if by == "depth" and columns:
        raise UserError("--by depth has columns of its own; leave out --columns")
    if format == "parquet" and not out:
        raise UserError("--format parquet is no text; say where it goes: --out FILE.parquet")
    runs = [StoredRun(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    measured = comparison.measured(runs, allowed, with_depths=by == "depth")
    if against is not None and against not in measured.methods:
        raise UserError(f"no method {against!r} in these runs; there are {', '.join(measured.methods)}")
    summary = comparison.summary(measured.against(against) if against else measured)
    if sort:
        summary = tables.sort(summary, sort)
    if by == "depth":
        shown = comparison.depth_table(measured)
        text = "" if format == "parquet" else tables.render_depths(shown, format, console.width)
    else:
        shown = tables.raw_columns(summary, columns)
        text = "" if format == "parquet" else tables.render(summary, format, console.width, columns, by)
    notes = [*warnings(runs, summary, measured), condition(runs[0], summary)]
    notes += [] if by == "depth" else legend(summary)
    said = [] if by == "depth" else sentences(summary)
    if format == "parquet":
        assert out
        write_frame(out, shown)
    elif out:
        files.write_text(out, _with_notes(text, [*said, *notes], format))
    else:
        _print(text, said, notes, format)
    if out:
        console.print(f"written: {out}", highlight=False, soft_wrap=True)
    return summary


def report(folders: Sequence[Path], out: Path, allowed: Sequence[str] = ()) -> None:
    """Write one page with everything about some runs. Raises UserError as `compare`."""
    runs = [StoredRun(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    measured = comparison.measured(runs, allowed)
    summary = comparison.summary(measured)
    wrong = [*warnings(runs, summary, measured), *unsure(summary)]
    told = [condition(runs[0], summary), *legend(summary)]
    with console.status("writing the page"):
        write_page(out, runs, summary, wrong, sentences(summary), told)
    console.print(f"written: {out} ({out.stat().st_size / 1e6:.1f} MB)", highlight=False, soft_wrap=True)


def trace(folder: Path, task: str, doc_id: int, methods: Sequence[str]) -> None:
    """Print one text, or two side by side, by where each token came from. Raises UserError if it is not there."""
    run = StoredRun(folder)
    drafting = [spec.name for spec in run.plan.methods if spec.name != run.plan.against(spec.name)]
    chosen = list(methods) or drafting[:1] or [spec.name for spec in run.plan.methods][:1]
    if len(chosen) > 2:
        raise UserError("two methods at most fit side by side; give --method once or twice")
    decode = load_decode(run)
    print_trace(console, [trace_of(run, task, doc_id, method, decode=decode) for method in chosen])


def warnings(runs: Sequence[StoredRun], summary: pd.DataFrame, measured: comparison.Measured) -> Iterator[str]:
    """What is wrong with the figures, or may be."""
    yield from measured.mismatches
    yield from comparison.stalled(measured)
    yield from comparison.uneven(measured)
    if summary.errors.any():
        failed = int(summary[summary.task != comparison.AVERAGE].errors.sum())
        yield f"failed samples: {failed}; their tracebacks are in samples.parquet"
    for row in summary[summary.drift.abs() > metrics.DRIFT_BOUND].drop_duplicates(["task", "baseline"]).itertuples():
        if row.task != comparison.AVERAGE:
            named = row.baseline if len(_baselines(summary)) > 1 else "the baseline"
            yield f"{row.task}: {named}'s time per token drifted by {row.drift:+.0%} within a run; repeat it"
    for run in runs:
        machine = run.manifest["environment"]
        if (machine.get("load") or 0) > (machine.get("cores") or float("inf")):
            yield f"the machine was busy at the start of {run.name} (load {machine['load']:.1f})"


def unsure(summary: pd.DataFrame) -> Iterator[str]:
    """Speedups that may be none."""
    holds = (summary.speedup_decode_low <= 1) & (summary.speedup_decode_high >= 1)
    for row in summary[holds & (summary.method != summary.baseline)].itertuples():
        low, high = row.speedup_decode_low, row.speedup_decode_high
        yield f"{row.task}, {row.method}: the speedup's interval [{low:.2f}, {high:.2f}] holds 1: it may be none"


def condition(first: StoredRun, summary: pd.DataFrame) -> str:
    """On what the figures were measured."""
    machine, models = first.manifest["environment"], first.manifest["models"]
    cores, threads = machine.get("cores"), machine.get("threads")
    used = f"{threads} of {cores}" if threads and threads != cores else cores
    where = f"{used} cores of {machine.get('cpu')}" if machine["device"] == "cpu" else machine["device"]
    setups = [" ".join(setup) for setup in summary[comparison.SETUP].drop_duplicates().to_numpy()]
    dtype = models["target"]["dtype"] if models else "dtype not told"
    documents = summary[summary.task != comparison.AVERAGE].documents.max() if len(summary) else 0
    which = f"{first.plan.split} documents" if first.plan.split else "documents"
    runtime = runtime_of(first.manifest)
    dtype += f", {runtime} runtime" if runtime != "eager" else ""
    return f"{', '.join(setups)}; {dtype}, {where or 'machine not told'}, up to {documents:.0f} {which} a task"


def legend(summary: pd.DataFrame) -> Iterator[str]:
    """What the columns of the table mean, and which baseline is whose."""
    bases = _baselines(summary)
    if bases:
        named = next(iter(bases)) if len(bases) == 1 else "the baseline"
        yield "score (± standard error), accept and α in %; p: of no difference from the baseline's score"
        yield (
            f"speedup: decode time per token of {named} over the method's, on the same documents, with its 95 % "
            "interval; = marks one that holds 1"
        )
    if len(bases) > FEW:
        yield f"baselines: {', '.join(bases)}; --format csv tells whose each is"
    elif len(bases) > 1:
        told = [f"{base} of {', '.join(others)}" if others else f"{base} by itself" for base, others in bases.items()]
        yield f"baselines: {'; '.join(told)}"


def _baselines(summary: pd.DataFrame) -> dict[str, list[str]]:
    """Every baseline of a summary, and the methods that are set against it, in their order."""
    found: dict[str, list[str]] = {}
    named = summary[summary.baseline != ""][["method", "baseline"]] if len(summary) else summary
    for method, base in named.drop_duplicates().itertuples(index=False):
        others = found.setdefault(base, [])
        if method != base:
            others.append(method)
    return found


def _print(text: str, said: Sequence[str], notes: Sequence[str], format: str) -> None:
    if format in ("csv", "json"):
        sys.stdout.write(text.rstrip() + "\n")
        for line in notes:
            if line.startswith("MISMATCH"):
                print(plain(line), file=sys.stderr)
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
    return f"{text.rstrip()}\n\n" + "".join(f"{before}{tables.note(line, format)}\n" for line in notes)
