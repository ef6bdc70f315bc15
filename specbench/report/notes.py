"""The notes next to a table of runs: what may be wrong with its figures, where they come from, what columns mean."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis import compare as compared
from specbench.analysis import metrics, pooled, time_warnings
from specbench.base.untrusted import brief
from specbench.config import UserError
from specbench.config.generation import unused_words
from specbench.report.divergence import divergence_lines
from specbench.results.stored import StoredRun, machine_text, runtime_of

MOST_KEYS = 6  # of a file of prompts that a line names
FEW = 4  # baselines; of more a legend does not list the methods


def notes_of(
    runs: Sequence[StoredRun], summary: pd.DataFrame, measured: pooled.Measured, other: bool = False
) -> list[str]:
    """What is printed after a table: warnings, conditions, and what its columns mean."""
    notes = [*warnings(runs, summary, measured), condition(runs[0], summary)]
    return notes + ([] if other else [*batch_speeds(runs[0], summary), *origins(runs), *legend(summary)])


def warnings(runs: Sequence[StoredRun], summary: pd.DataFrame, measured: pooled.Measured) -> Iterator[str]:
    """What is wrong with the figures, or may be."""
    yield from divergence_lines(runs)
    yield from measured.mismatches
    if named := _counted(measured):
        yield f"accept, α and τ of {named} are a server's totals: what came after the end of a text counts too"
    yield from unaccepted(summary)
    yield from unrescued(summary, runs)
    yield from dict.fromkeys(filter(None, (unused_words(run.manifest.get("unused_generation", {})) for run in runs)))
    yield from time_warnings.unfit(measured)
    yield from unwrapped(runs, measured)
    yield from unread(runs)
    yield from time_warnings.untimed(measured)
    if measured.asked:
        from specbench.analysis import asked

        yield from asked.lines(measured.unlike, runs)
    yield from time_warnings.stalled(measured)
    yield from time_warnings.uneven(measured)
    yield from time_warnings.unpooled(measured)
    yield from dict.fromkeys(line for run in runs for line in time_warnings.uneven_widths(run))
    if summary.errors.any():
        failed = int(summary[summary.task != compared.AVERAGE].errors.sum())
        yield f"failed samples: {failed}{_first_error(runs)}; the column `error` of samples.parquet has all of it"
    if any(run.plan.servers for run in runs):
        from specbench.report.unanswered import unanswered_lines

        yield from unanswered_lines(runs)
    for row in summary[summary.drift.abs() > metrics.DRIFT_BOUND].drop_duplicates(["task", "baseline"]).itertuples():
        if row.task != compared.AVERAGE:
            baselines = _baselines(summary)
            baseline = row.baseline if len(baselines) > 1 or not any(baselines.values()) else "the baseline"
            yield f"{row.task}: {baseline}'s time per token drifted by {row.drift:+.0%} within a run; repeat it"
    for run in runs:
        if run.slowed:
            yield f"{run.name}: {run.slowed} while it decoded: no verdict on speed; see nvidia-smi, and repeat"
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


def _first_error(runs: Sequence[StoredRun]) -> str:
    """Of the first sample that failed, in words: the method and the last line of what was raised."""
    for run in runs:
        for method, error in run.samples(["method", "error"]).dropna().itertuples(index=False):
            if lines := error.strip().splitlines():
                return f", the first of {method}: {brief(lines[-1])}"
    return ""


def unaccepted(summary: pd.DataFrame) -> Iterator[str]:
    """A line for each method of whose drafts nothing was accepted on some tasks."""
    rows = summary[(summary.task != compared.AVERAGE) & summary.acceptance_rate.notna()]
    for method, of_method in rows.groupby("method", sort=False):
        none = of_method[of_method.acceptance_rate == 0]
        where = "" if len(none) == len(of_method) else f" on {' and '.join(dict.fromkeys(none.task))}"
        if len(none):
            yield (
                f"{method}: not one drafted token was accepted{where}; if it drafts by a model or a head, check that "
                "these belong to the target"
            )


def unrescued(summary: pd.DataFrame, runs: Sequence[StoredRun]) -> Iterator[str]:
    """A line for each method that may rescue rejected tokens and did not: it decoded as exact verification does."""
    able = {name for run in runs for name in run.manifest.get("rescuing", ())}
    tasks = summary[(summary.task != compared.AVERAGE) & (summary.acceptance_rate < 1) & summary.method.isin(able)]
    for name, rows in tasks.groupby("method", sort=False):
        if (rows.rescue_rate == 0).all():
            yield (
                f"{name}: no rejected token was rescued, so its texts are those of exact verification; calibrate it "
                "(specbench calibrate), or loosen its settings"
            )


def unread(runs: Sequence[StoredRun]) -> Iterator[str]:
    """A line for each file of prompts whose lines say more than was read."""
    for run in runs:
        if counts := run.manifest.get("unread_keys"):
            first = ", ".join(f"{brief(key)} ({count} lines)" for key, count in list(counts.items())[:MOST_KEYS])
            more = f" and {len(counts) - MOST_KEYS} more" if len(counts) > MOST_KEYS else ""
            yield f"keys of {Path(run.plan.prompts or run.name).name} that were not read: {first}{more}"


def unwrapped(runs: Sequence[StoredRun], measured: pooled.Measured) -> Iterator[str]:
    """A line for each run of empty answers to prompts without the chat template that the target has."""
    empty = [counts["empty"] for counts in measured.by_row.values()]
    if not empty or pd.concat(empty).mean() < 0.5:
        return
    for run in runs:
        target = (run.manifest["models"] or {}).get("target", {})
        if target.get("chat_template") and not run.plan.chat_template:
            yield (
                f"{run.plan.pair.name} has a chat template, and most answers are empty without it; add "
                "--apply-chat-template"
            )


def beyond_tau(summary: pd.DataFrame, runs: Sequence[StoredRun]) -> pd.DataFrame:
    """Rows that are faster than their tokens per target round allow, if no round is faster than one token of vanilla.

    Other baselines, which decode with several models at a time, have no such bound, nor have methods without a target.
    """
    vanilla = {spec.name for run in runs for spec in run.plan.methods if spec.method == "vanilla"}
    bounded = (summary.task != compared.AVERAGE) & (summary.verification_rate > 0)
    bounded &= (summary.method != summary.baseline) & summary.baseline.isin(vanilla)
    return summary[bounded & (summary.speedup_decode > summary.tau * (1 + 1e-9))]


def withheld(summary: pd.DataFrame, runs: Sequence[StoredRun]) -> dict[Any, str]:
    """By the labels of rows, why no verdict is given of their speed: an impossible one, or a GPU that was slowed."""
    if slowed := "; ".join(dict.fromkeys(run.slowed for run in runs if run.slowed)):
        return dict.fromkeys(summary.index, slowed)
    return {
        row.Index: f"{row.speedup_decode:.2f} × is more than its τ of {row.tau:.2f} can give"
        for row in beyond_tau(summary, runs).itertuples()
    }


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


def _counted(measured: pooled.Measured) -> str:
    """The methods whose rounds a server counted, of all requests together."""
    if not measured.totals:
        return ""
    from specbench.analysis.totals import counted

    return ", ".join(dict.fromkeys(row[-1] for row, parts in measured.totals.items() if counted(parts)))


def condition(first: StoredRun, summary: pd.DataFrame) -> str:
    """What the figures were measured on."""
    models = first.manifest["models"]
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
    return f"{', '.join(setups)}; {dtype}, {machine_text(first.manifest)}, up to {documents:.0f} {which} a task{batch}"


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
                from specbench.results.importers import origin

                yield f"{file.get('method')} ({file.get('file')}): {origin.time_and_host(file)}"


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
