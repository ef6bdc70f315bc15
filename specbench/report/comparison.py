"""What commands print of runs: `run` when it has finished one, and `show`, `compare`, `report` and `trace`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specbench.analysis import compare as compared
from specbench.analysis import pooled
from specbench.base import files
from specbench.base.console import console, duration, plain, say, warn
from specbench.base.folder import member
from specbench.config import UserError
from specbench.report import tables
from specbench.report.columns import DEPTH_COLUMNS, WORKER_COLUMNS, Column
from specbench.report.divergence import FAULT, faulty
from specbench.report.finding import print_lines
from specbench.report.notes import condition, how_much, legend, notes_of, origins, titles, unsure, warnings, withheld
from specbench.report.words import sentences
from specbench.results.aside import PARTS, SECONDS, TOTAL, read_seconds
from specbench.results.records import write_frame
from specbench.results.stored import StoredRun

OTHER = ("depth", "worker")  # values of --by whose tables have columns of their own


def finish(folder: Path) -> int:
    """Write the summary of a finished run, print its table and what to do next; returns the exit code of `run`."""
    run = StoredRun(folder)
    measured = pooled.measured([run])
    summary = compared.summary(measured)
    write_frame(member(folder, "summary.parquet"), summary)
    for task, count in run.manifest.get("left_out", {}).items():
        room = f"in {run.plan.max_length} tokens" if run.plan.max_length else "in the models' window"
        warn(f"{task}: {count} documents left out: their prompts leave no room {room}")
    if shared := ((run.manifest.get("models") or {}).get("draft") or {}).get("shared_tokens"):
        say(f"the draft has another tokenizer: it proposed only the {shared} tokens that the target has too")
    text = tables.render(summary, "table", console.width, (), "task")
    _print(
        text,
        sentences(summary, withheld(summary, [run])),
        notes_of([run], summary, measured),
        "table",
        titles([run]),
    )
    say("")
    print_lines(console, spent_lines(folder, summary), "dim")
    for line in (
        f"records: {folder}/ (samples, rounds, scores and summary.parquet, manifest.json)",
        f"next:    specbench show {folder} --format md",
        f"         specbench compare {folder} OTHER_RUN",
    ):
        say(line)
    return 3 if summary.errors.any() or faulty(run) else 0


def spent_lines(folder: Path, summary: pd.DataFrame) -> list[str]:
    """Lines about the time, the states and the memory of a finished run; none where they are not known."""
    lines = where_time_went(folder), what_states_cost(folder), where_memory_went(StoredRun(folder), summary)
    return [line for line in lines if line]


def where_time_went(folder: Path) -> str:
    """A line about the parts of a finished run's time; empty where it is not known, as of a run of several workers."""
    stored = read_seconds(member(folder, SECONDS))
    total = stored.get(TOTAL, 0.0)
    if total <= 0:
        return ""
    rest = total - sum(stored.get(part, 0.0) for part in PARTS)
    shares = [(part, stored.get(part, 0.0) / total) for part in PARTS] + [("the rest", rest / total)]
    return f"time:    {duration(total)}: " + ", ".join(f"{part} {share:.0%}" for part, share in shares)


def what_states_cost(folder: Path) -> str:
    """A line about the rollbacks of models with a state; empty where there are none."""
    stored = read_seconds(member(folder, SECONDS))
    if not (copies := stored.get("state copies")):
        return ""
    each, again = amount(stored["state bytes"] / copies), f"{stored['state again']:,.0f} tokens read again"
    return f"states:  {copies:,.0f} copies of {each} in {duration(stored['state seconds'])}, {again}"


def where_memory_went(run: StoredRun, summary: pd.DataFrame) -> str:
    """The most memory that a run took, and what of it were weights and what was there after loading."""
    loaded, peak = run.manifest.get("memory_loaded"), summary.peak_memory.max()
    models = (run.manifest["models"] or {}).items()
    weights = {role: facts["forward"]["weight_bytes"] for role, facts in models if facts.get("forward")}
    if loaded is None or pd.isna(peak) or not weights:
        return ""
    each = ", ".join(f"{role} {amount(size)}" for role, size in weights.items())
    return (
        f"memory:  at most {amount(peak)}: {amount(loaded)} when all was loaded ({each}, libraries), the rest for "
        "caches and what methods keep"
    )


def amount(size: float) -> str:
    """Bytes in words."""
    if size < 1e6:
        return f"{size / 1e3:.0f} kB"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


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
    measured = measured if against is None else measured.against(against)
    summary = compared.summary(measured)
    if sort:
        summary = tables.sort(summary, sort)
    if by in OTHER:
        shown, shown_columns = _other(by, measured)
        text = "" if format == "parquet" else tables.render_other(shown, shown_columns, format, console.width)
    else:
        shown = tables.raw_columns(summary, columns)
        text = "" if format == "parquet" else tables.render(summary, format, console.width, columns, by)
    notes = [*stopped, *notes_of(runs, summary, measured, by in OTHER)]
    lines = [] if by in OTHER else sentences(summary, withheld(summary, runs))
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


def _other(by: str, measured: pooled.Measured) -> tuple[pd.DataFrame, dict[str, Column]]:
    """The table of a value of --by in OTHER, and its columns."""
    if by == "depth":
        return compared.depth_table(measured), DEPTH_COLUMNS
    from specbench.analysis import by_worker

    return by_worker.table(measured), WORKER_COLUMNS


def report(folders: Sequence[Path], out: Path, allowed: Sequence[str] = ()) -> None:
    """Write one page with everything about some runs. Raises UserError as `compare`."""
    from specbench.report.page import write_page  # with plotly and jinja2, which no other reader needs

    runs = [StoredRun(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    measured = pooled.measured(runs, allowed)
    summary = compared.summary(measured)
    wrong = [*warnings(runs, summary, measured), *unsure(summary)]
    caption = [condition(runs[0], summary), *origins(runs), *legend(summary)]
    said = sentences(summary, withheld(summary, runs))
    with console.status("writing the page"):
        write_page(out, runs, summary, wrong, said, caption)
    say(f"written: {out} ({out.stat().st_size / 1e6:.1f} MB)")


def trace(folder: Path, task: str, doc_id: int, methods: Sequence[str]) -> None:
    """Print one text, or two side by side, by where each token came from. Raises UserError if it is not there."""
    from specbench.analysis.texts import load_decode
    from specbench.analysis.trace import document_scores, find_sample
    from specbench.analysis.trace import trace as trace_of
    from specbench.report.views.trace import print_trace

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


def _print(text: str, lines: Sequence[str], notes: Sequence[str], format: str, titles: Sequence[str]) -> None:
    if format == "table":
        print_lines(console, titles, "bold")
        sys.stdout.write(text.rstrip() + "\n")
        sys.stdout.flush()
        print_lines(console, ["", *lines])
        print_lines(console, [line for line in notes if line.startswith(FAULT)], "bold red")
        print_lines(console, [line for line in notes if not line.startswith(FAULT)], "dim")
        return
    sys.stdout.write(_with_notes(text, [*lines, *notes], format))
    for line in notes if format in ("csv", "json") else []:
        if line.startswith(("MISMATCH", "UNFINISHED", FAULT)):
            print(plain(line), file=sys.stderr)


def _with_notes(text: str, notes: Sequence[str], format: str) -> str:
    """A text with its caption, as Markdown lines or LaTeX comments; data formats have no place for one."""
    if format in ("csv", "json"):
        return text.rstrip() + "\n"
    before = {"latex": "% ", "md": "- "}.get(format, "")
    return f"{text.rstrip()}\n\n" + "".join(f"{before}{tables.note(line, format)}\n" for line in notes)
