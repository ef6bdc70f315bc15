"""What the commands that read runs do: `show`, `compare`, `report` and `trace`."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from specbench.analysis import by_worker, metrics, pooled, time_warnings, totals
from specbench.analysis import compare as compared
from specbench.analysis.texts import load_decode
from specbench.analysis.trace import document_scores, find_sample
from specbench.analysis.trace import trace as trace_of
from specbench.base import files
from specbench.base.console import console, plain, say, warn
from specbench.base.folder import member
from specbench.config import UserError
from specbench.report import tables
from specbench.report.columns import DEPTH_COLUMNS, WORKER_COLUMNS
from specbench.report.finding import print_lines
from specbench.report.unanswered import unanswered_lines
from specbench.report.views.trace import print_trace
from specbench.report.words import sentences
from specbench.results.importers import origin
from specbench.results.records import write_frame
from specbench.results.stored import StoredRun, runtime_of

# Tables with columns of their own, by what --by is.
OTHER = {
    "depth": (compared.depth_table, DEPTH_COLUMNS),
    "worker": (by_worker.table, WORKER_COLUMNS),
}
FEW = 4  # baselines; of more a legend does not list the methods


def finish(folder: Path) -> int:
    """Write the summary of a finished run, print its table and what to do next; returns the exit code of `run`."""
    run = StoredRun(folder)
    measured = pooled.measured([run])
    summary = compared.summary(measured)
    write_frame(member(folder, "summary.parquet"), summary)
    for task, count in run.manifest.get("left_out", {}).items():
        warn(f"{task}: {count} documents left out: their prompts leave no room in {run.plan.max_length} tokens")
    if shared := ((run.manifest.get("models") or {}).get("draft") or {}).get("shared_tokens"):
        say(f"the draft has another tokenizer: it proposed only the {shared} tokens that the target has too")
    text = tables.render(summary, "table", console.width, (), "task")
    _print(text, sentences(summary), _notes([run], summary, measured), "table", titles([run]))
    for line in (
        f"\nrecords: {folder}/ (samples, rounds, scores and summary.parquet, manifest.json)",
        f"next:    specbench show {folder} --format md",
        f"         specbench compare {folder} OTHER_RUN",
    ):
        say(line)
    return 3 if summary.errors.any() else 0


def show(folder: Path, format: str) -> pd.DataFrame:
    """Print the table of one run, or of what there is of it if it was stopped; returns its summary."""
    return compare([folder], format, unfinished=True)


def compare(
    folders: Sequence[Path],
    format: str,
    by: str = "task",
    sort: str | None = None,
    columns: Sequence[str] = (),
    allowed: Sequence[str] = (),
    out: Path | None = None,
    against: str | None = None,
    unfinished: bool = False,
) -> pd.DataFrame:
    """Print the rows of several runs in one table, or write them to `out`; returns the summary, whatever was printed.

    Each method is compared with its baseline, or all of them with the method `against`. With `unfinished`, runs that
    were stopped are shown as far as they came. Raises UserError if the runs cannot be compared, or for an unknown
    column or method.
    """
    if by in OTHER and columns:
        raise UserError(f"--by {by} has columns of its own; leave out --columns")
    if format == "parquet" and not out:
        raise UserError("--format parquet is not text; give a file for it: --out FILE.parquet")
    runs = [StoredRun(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    stopped = [how_much(run) for run in runs if unfinished and not run.finished]
    measured = pooled.measured(runs, allowed, by == "depth", unfinished)
    summary = compared.summary(measured if against is None else measured.against(against))
    if sort:
        summary = tables.sort(summary, sort)
    if by in OTHER:
        make, shown_columns = OTHER[by]
        shown = make(measured if against is None else measured.against(against))
        text = "" if format == "parquet" else tables.render_other(shown, shown_columns, format, console.width)
    else:
        shown = tables.raw_columns(summary, columns)
        text = "" if format == "parquet" else tables.render(summary, format, console.width, columns, by)
    notes = [*stopped, *_notes(runs, summary, measured, by in OTHER)]
    lines = [] if by in OTHER else sentences(summary)
    if format == "parquet":
        assert out
        write_frame(out, shown)
    elif out:
        files.write_text(out, _with_notes(text, [*lines, *notes], format))
    else:
        _print(text, lines, notes, format, titles(runs))
    if out:
        say(f"written: {out}")
    return summary


def report(folders: Sequence[Path], out: Path, allowed: Sequence[str] = ()) -> None:
    """Write one page with everything about some runs. Raises UserError as `compare`."""
    from specbench.report.page import write_page  # with plotly and jinja2, which no other reader needs

    runs = [StoredRun(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    measured = pooled.measured(runs, allowed)
    summary = compared.summary(measured)
    wrong = [*warnings(runs, summary, measured), *unsure(summary)]
    caption = [condition(runs[0], summary), *origins(runs), *legend(summary)]
    with console.status("writing the page"):
        write_page(out, runs, summary, wrong, sentences(summary), caption)
    say(f"written: {out} ({out.stat().st_size / 1e6:.1f} MB)")


def trace(folder: Path, task: str, doc_id: int, methods: Sequence[str]) -> None:
    """Print one text, or two side by side, by where each token came from. Raises UserError if it is not there."""
    run = StoredRun(folder)
    drafting = [spec.name for spec in run.plan.methods if spec.name != run.plan.against(spec.name)]
    chosen = list(methods) or drafting[:1] or [spec.name for spec in run.plan.methods][:1]
    if len(chosen) > 2:
        raise UserError("two methods at most fit side by side; give --method once or twice")
    for method in chosen:  # before the tokenizer, which takes seconds to import
        find_sample(run, task, doc_id, method)
    decode = load_decode(run)
    texts = [trace_of(run, task, doc_id, method, decode=decode) for method in chosen]
    about = run.kept({task: [doc_id]}).get((task, doc_id))
    print_trace(console, texts, about, document_scores(run, run.headline()))


def _notes(
    runs: Sequence[StoredRun], summary: pd.DataFrame, measured: pooled.Measured, other: bool = False
) -> list[str]:
    """What is printed after a table: warnings, conditions, and what its columns mean."""
    notes = [*warnings(runs, summary, measured), condition(runs[0], summary)]
    return notes + ([] if other else [*batch_speeds(runs[0], summary), *origins(runs), *legend(summary)])


def warnings(runs: Sequence[StoredRun], summary: pd.DataFrame, measured: pooled.Measured) -> Iterator[str]:
    """What is wrong with the figures, or may be."""
    yield from measured.mismatches
    named = ", ".join(dict.fromkeys(row[-1] for row, parts in measured.totals.items() if totals.counted(parts)))
    if named:
        yield f"accept, α and τ of {named} are a server's totals: what came after the end of a text counts too"
    yield from time_warnings.late(measured)
    yield from time_warnings.stalled(measured)
    yield from time_warnings.uneven(measured)
    yield from time_warnings.unpooled(measured)
    if summary.errors.any():
        failed = int(summary[summary.task != compared.AVERAGE].errors.sum())
        yield f"failed samples: {failed}; the column `error` of samples.parquet says why"
    yield from unanswered_lines(runs)
    for row in summary[summary.drift.abs() > metrics.DRIFT_BOUND].drop_duplicates(["task", "baseline"]).itertuples():
        if row.task != compared.AVERAGE:
            baselines = _baselines(summary)
            baseline = row.baseline if len(baselines) > 1 or not any(baselines.values()) else "the baseline"
            yield f"{row.task}: {baseline}'s time per token drifted by {row.drift:+.0%} within a run; repeat it"
    for row in beyond_tau(summary, runs).itertuples():
        yield (
            f"{row.task}, {row.method}: a speedup of {row.speedup_decode:.2f} is more than τ = {row.tau:.2f} tokens a "
            "target round can give; something else slowed the baseline or sped the method up: measure again"
        )
    for run in runs:
        for method, count in run.manifest.get("leaks", {}).items():
            yield f"LEAK: the memory of {method} was made from {count} of the documents that {run.name} tests it on"
        machine = run.manifest["environment"]
        if (machine.get("load") or 0) > (machine.get("cores") or float("inf")):
            yield f"the machine was busy at the start of {run.name} (load {machine['load']:.1f})"


def beyond_tau(summary: pd.DataFrame, runs: Sequence[StoredRun]) -> pd.DataFrame:
    """Rows that are faster than their tokens per target round allow, if no round is faster than one token of vanilla.

    Other baselines, which decode with several models at a time, have no such bound, nor have methods without a target.
    """
    vanilla = {spec.name for run in runs for spec in run.plan.methods if spec.method == "vanilla"}
    bounded = (summary.task != compared.AVERAGE) & (summary.verification_rate > 0)
    bounded &= (summary.method != summary.baseline) & summary.baseline.isin(vanilla)
    return summary[bounded & (summary.speedup_decode > summary.tau * (1 + 1e-9))]


def how_much(run: StoredRun) -> str:
    """How much there is of an unfinished run, and how to go on. Raises UserError if there is nothing."""
    done, total = run.progress
    remedy = f"`specbench run --resume {run.folder}` continues it"
    if run.shard and done == total:
        remedy = f"it is {run.shard.shard}, and `specbench join` makes one run of all"
    if not done:
        raise UserError(f"{run.folder} was stopped before the first of its {total} documents was done; {remedy}")
    return f"UNFINISHED: {done} of {total} documents are decoded, and none is scored; {remedy}"


def unsure(summary: pd.DataFrame) -> Iterator[str]:
    """Speedups whose interval holds 1."""
    holds = (summary.speedup_decode_low <= 1) & (summary.speedup_decode_high >= 1)
    for row in summary[holds & (summary.method != summary.baseline)].itertuples():
        low, high = row.speedup_decode_low, row.speedup_decode_high
        yield f"{row.task}, {row.method}: the speedup's interval [{low:.2f}, {high:.2f}] contains 1: perhaps no speedup"


def titles(runs: Sequence[StoredRun]) -> list[str]:
    """A line for each pair: its name, and what it is."""
    pairs = dict.fromkeys((run.plan.pair.name, run.plan.pair.description) for run in runs)
    return [f"{name}: {description}" if description else name for name, description in pairs]


def condition(first: StoredRun, summary: pd.DataFrame) -> str:
    """What the figures were measured on."""
    machine, models = first.manifest["environment"], first.manifest["models"]
    cores, threads = machine.get("cores"), machine.get("threads")
    used = f"{threads} of {cores}" if threads and threads != cores else cores
    where = f"{used} cores of {machine.get('cpu')}" if machine["device"] == "cpu" else machine["device"]
    setups = [" ".join(setup) for setup in summary[pooled.SETUP].drop_duplicates().to_numpy()]
    dtype = models["target"]["dtype"] if models else "dtype not known"
    documents = summary[summary.task != compared.AVERAGE].documents.max() if len(summary) else 0
    which = f"{first.plan.split} documents" if first.plan.split else "documents"
    runtime = runtime_of(first.manifest)
    dtype += f", {runtime} runtime" if runtime != "eager" else ""
    alone = first.plan.time_documents
    times = f"times are of the first {alone} of each, alone" if alone else "times are shares of the batch's"
    if any(spec.values.get("online") for spec in first.plan.methods):
        times += ", and methods that learn from text to text learn later than one by one"
    batch = f"; in batches of {first.plan.batch}, {times}" if first.plan.batch > 1 else ""
    return f"{', '.join(setups)}; {dtype}, {where or 'machine not known'}, up to {documents:.0f} {which} a task{batch}"


def batch_speeds(first: StoredRun, summary: pd.DataFrame) -> Iterator[str]:
    """How fast methods were in batches, where the table's speeds are of documents that were decoded alone."""
    rows = summary[(summary.task != compared.AVERAGE) & summary.tokens_per_s_batch.notna()]
    for task, of_task in rows.groupby("task", sort=False):
        speeds = dict(zip(of_task.method, of_task.tokens_per_s_batch, strict=True))
        parts = []
        for row in of_task.itertuples():
            base = speeds.get(row.baseline)
            ratio = f" ({row.tokens_per_s_batch / base:.2f} ×)" if base and row.method != row.baseline else ""
            parts.append(f"{row.method} {row.tokens_per_s_batch:.0f}{ratio}")
        yield f"{task}, tok/s in batches of {first.plan.batch}: {', '.join(parts)}"


def origins(runs: Sequence[StoredRun]) -> Iterator[str]:
    """Where and when other tools took the figures of imported runs."""
    for run in runs:
        imported = run.manifest.get("imported")
        files = imported.get("files") if isinstance(imported, dict) else []
        for file in files if isinstance(files, list) else []:
            if isinstance(file, dict):
                yield f"{file.get('method')} ({file.get('file')}): {origin.told(file)}"


def legend(summary: pd.DataFrame) -> Iterator[str]:
    """What the columns of the table mean, and which methods each baseline is of."""
    baselines = _baselines(summary)
    timed = summary.documents.any()
    if timed and summary.accuracy.notna().any():
        p = "; p: chance of such a difference if there were none" * bool(summary.accuracy_p.notna().any())
        yield f"score (with its 95 % interval), accept and α in %{p}"
    if timed and any(baselines.values()):
        baseline = next(iter(baselines)) if len(baselines) == 1 else "the baseline"
        decoding = summary.speedup_decode.notna().any()
        what = "speedup: decode time" if decoding else "end to end: time, with the prefill,"
        yield (
            f"{what} per token of {baseline} over the method's, on the same documents, with its 95 % "
            "interval; = marks an interval that contains 1"
        )
    if len(baselines) > FEW:
        yield f"baselines: {', '.join(baselines)}; --format csv shows which methods each is for"
    elif len(baselines) > 1:
        parts = [
            f"{name} of {', '.join(methods)}" if methods else f"{name} alone" for name, methods in baselines.items()
        ]
        yield f"baselines: {'; '.join(parts)}"


def _baselines(summary: pd.DataFrame) -> dict[str, list[str]]:
    """Every baseline of a summary, and the methods that are compared with it, in their order."""
    baselines: dict[str, list[str]] = {}
    rows = summary[summary.baseline != ""][["method", "baseline"]] if len(summary) else summary
    for method, baseline in rows.drop_duplicates().itertuples(index=False):
        methods = baselines.setdefault(baseline, [])
        if method != baseline:
            methods.append(method)
    return baselines


def _print(text: str, lines: Sequence[str], notes: Sequence[str], format: str, titles: Sequence[str]) -> None:
    if format == "table":
        print_lines(console, titles, "bold")
        sys.stdout.write(text.rstrip() + "\n")
        sys.stdout.flush()
        print_lines(console, ["", *lines])
        print_lines(console, notes, "dim")
        return
    sys.stdout.write(_with_notes(text, [*lines, *notes], format))
    for line in notes if format in ("csv", "json") else []:
        if line.startswith(("MISMATCH", "UNFINISHED")):
            print(plain(line), file=sys.stderr)


def _with_notes(text: str, notes: Sequence[str], format: str) -> str:
    """A text with its caption, as Markdown lines or LaTeX comments; data formats have no place for one."""
    if format in ("csv", "json"):
        return text.rstrip() + "\n"
    before = {"latex": "% ", "md": "- "}.get(format, "")
    return f"{text.rstrip()}\n\n" + "".join(f"{before}{tables.note(line, format)}\n" for line in notes)
