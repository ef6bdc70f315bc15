"""Several runs in one table: a row for each pair, sampling, task and method, and their averages over tasks.

Runs of the same pair, sampling and method are pooled as repeats. A method is set against the baseline of the very runs
it was in, document by document.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from specbench import metrics, stats
from specbench.config import UserError
from specbench.environment import MUST_AGREE
from specbench.stored import StoredRun

SETUP = ["pair", "sampling"]
ROW = [*SETUP, "task", "method"]
ONCE = ["run", "repeat"]  # one pass over the documents
AVERAGE = "average"
STALL = 5  # times the median time per token of its row: a text that was held up


@dataclass(frozen=True)
class Measured:
    """The samples and scores of several runs, under common labels."""

    counts: pd.DataFrame  # of metrics.per_document, indexed by ROW, ONCE and doc_id
    scores: pd.DataFrame  # value and stderr of the tasks' headline metrics; columns ROW, ONCE and doc_id
    depths: pd.DataFrame  # of metrics.depths, with SETUP
    errors: pd.Series  # failed samples by ROW
    methods: list[str]  # the baseline first, then in the order of the runs
    metric: dict[str, str]  # by task
    baseline: str | None
    mismatches: list[str]  # differences that the user let pass, and what imported runs do not tell

    @cached_property
    def by_row(self) -> dict[tuple[str, ...], pd.DataFrame]:
        """The counts of each row of the summary, indexed by ONCE and doc_id."""
        return {key: part.droplevel(ROW) for key, part in self.counts.groupby(level=ROW, sort=False)}

    def only(self, tasks: Iterable[str]) -> "Measured":
        """The same for some of the tasks, so that averages are over these."""
        chosen = set(tasks)
        return replace(
            self,
            counts=self.counts[self.counts.index.isin(chosen, level="task")],
            scores=self.scores[self.scores.task.isin(chosen)],
            errors=self.errors[self.errors.index.isin(chosen, level="task")],
            metric={task: metric for task, metric in self.metric.items() if task in chosen},
        )


def measured(runs: Sequence[StoredRun], allowed: Sequence[str] = (), with_depths: bool = False) -> Measured:
    """Read runs for a comparison. Raises UserError if they differ in what must agree and is not in `allowed`."""
    mismatches = check_alike(runs, allowed)
    labels = method_labels(runs)
    counts, scores, depths, errors = [], [], [], []
    metric: dict[str, str] = {}
    for number, run in enumerate(runs):
        setup = {"pair": run.plan.pair.name, "sampling": run.sampling}
        columns = [*metrics.SAMPLE, "warmup", "finish", "prefill_seconds", "decode_seconds", "peak_memory"]
        columns += ["new_tokens", "wall_seconds"]
        found = run.scores()  # first: it refuses what is unfinished or damaged
        samples = run.samples(columns)
        rounds = run.rounds()
        one = metrics.per_document(samples, rounds).reset_index()
        counts.append(one.assign(**setup, run=number, method=one.method.map(labels[number])))
        failed = samples[~samples.warmup & (samples.finish == "error")]
        errors.append(failed.assign(**setup, method=failed.method.map(labels[number])))
        metric |= (headline := run.headline())
        wanted = found.task.map(headline) == found.metric + "," + found["filter"]
        found = found[wanted]
        scores.append(found.assign(**setup, run=number, method=found.method.map(labels[number])))
        if with_depths:
            deep = metrics.depths(rounds)
            depths.append(deep.assign(**setup, method=deep.method.map(labels[number])))
    named = [by_name[run.plan.baseline] for run, by_name in zip(runs, labels, strict=True) if run.plan.baseline]
    baseline = named[0] if named else None
    methods = dict.fromkeys(label for by_name in labels for label in by_name.values())
    return Measured(
        methods=sorted(methods, key=lambda label: label != baseline),
        counts=pd.concat(counts, ignore_index=True).set_index([*ROW, *ONCE, "doc_id"]).sort_index(),
        scores=pd.concat(scores, ignore_index=True),
        depths=pd.concat(depths, ignore_index=True) if depths else pd.DataFrame(),
        errors=pd.concat(errors, ignore_index=True).groupby(ROW).size(),
        metric=metric,
        baseline=baseline,
        mismatches=mismatches,
    )


def summary(runs: Measured) -> pd.DataFrame:
    """One row per pair, sampling, task and method, in the order of the runs, then averages over the tasks."""
    timed = runs.counts.index.droplevel([*ONCE, "doc_id"]).unique().to_frame(index=False)  # imported: without scores
    present = pd.concat([runs.scores[ROW], timed, runs.errors.reset_index()[ROW]]).drop_duplicates()
    rates = metrics.rates(runs.counts, ROW)
    tables = []
    for _, setup in present.groupby(SETUP, sort=False):
        methods = [name for name in runs.methods if name in set(setup.method)]
        tasks = [task for task in runs.metric if task in set(setup.task)]
        cells = {}
        for task in tasks:
            for method in methods:
                row = (*setup.iloc[0][SETUP], task, method)
                if row in set(present.itertuples(index=False, name=None)):
                    cells[task, method] = _cell(runs, row, rates)
        tables += [cell.row for cell in cells.values()]
        if len(tasks) > 1:
            tables += [
                _average([cells[task, method] for task in tasks])
                for method in methods
                if all((task, method) in cells for task in tasks)
            ]
    return pd.DataFrame(tables)


@dataclass(frozen=True)
class Cell:
    """One row of the summary, with what its average over tasks needs."""

    row: dict[str, Any]
    times: stats.Paired | None
    whole_times: stats.Paired | None


def _cell(runs: Measured, key: tuple[str, ...], rates: pd.DataFrame) -> Cell:
    nothing = runs.counts.iloc[:0].droplevel(ROW)
    mine, base = runs.by_row.get(key, nothing), runs.by_row.get((*key[:3], runs.baseline or ""), nothing)
    row: dict[str, Any] = dict(zip(ROW, key, strict=True))
    row |= {
        "baseline": runs.baseline or "",
        "metric": runs.metric[key[2]],
        "documents": mine.index.get_level_values("doc_id").nunique(),
        "repeats": len(mine.index.droplevel("doc_id").unique()),
        "errors": int(runs.errors.get(key, 0)),
    }
    row |= _accuracy(runs.scores, key, runs.baseline)
    row |= rates.loc[key].to_dict() if key in rates.index else dict.fromkeys(rates, np.nan)
    times, whole_times = _paired(mine, base), _paired(mine, base, whole=True)
    row |= _speedup_columns("speedup_decode", stats.speedup(times) if times else None)
    row |= _speedup_columns("speedup_e2e", stats.speedup(whole_times) if whole_times else None)
    row["speedup_spread"] = _spread(mine, base) if row["repeats"] > 1 else np.nan
    row["drift"] = max((metrics.drift(one) for _, one in base.groupby("run")), key=abs, default=0.0)
    return Cell(row, times, whole_times)


def _paired(mine: pd.DataFrame, base: pd.DataFrame, whole: bool = False) -> stats.Paired | None:
    """Times per document, added up over the passes in which both decoded it; `whole` counts the prefill in."""
    columns = ["whole", "whole_tokens"] if whole else ["decode", "decoded"]  # seconds, tokens
    both = mine[columns].merge(base[columns], left_index=True, right_index=True, suffixes=("", "_base"))
    if both.empty or both.isna().any(axis=None):
        return None
    sums = both.groupby("doc_id").sum()
    names = (*(f"{name}_base" for name in columns), *columns)
    return stats.Paired(*(sums[name].to_numpy(float) for name in names))


def _spread(mine: pd.DataFrame, base: pd.DataFrame) -> float:
    """The standard deviation of the decode speedup between passes."""
    pairs = [_paired(one, base) for _, one in mine.groupby(ONCE)]
    found = [one.value for pair in pairs if pair and (one := stats.speedup(pair))]
    return float(np.std(found, ddof=1)) if len(found) > 1 else np.nan


def _accuracy(scores: pd.DataFrame, key: tuple[str, ...], baseline: str | None) -> dict[str, Any]:
    """The headline metric, and its difference from the baseline's on the same documents of the same passes."""
    here = scores[(scores[ROW[:3]] == list(key[:3])).all(axis=1)]
    mine = here[here.method == key[3]]
    whole, documents = mine[mine.doc_id.isna()], mine[mine.doc_id.notna()]
    per_document = documents.groupby("doc_id").value.mean()
    stderr = whole.stderr.mean()
    if len(whole) > 1:
        stderr = per_document.std(ddof=1) / np.sqrt(len(per_document)) if len(per_document) > 1 else np.nan
    value = whole.value.mean() if len(whole) == 1 else per_document.mean()
    row = {"accuracy": value, "accuracy_stderr": stderr}
    row["accuracy_spread"] = whole.value.std(ddof=1) if len(whole) > 1 else np.nan
    base = here[(here.method == baseline) & here.doc_id.notna()]
    both = documents.merge(base, on=[*ONCE, "doc_id"], suffixes=("", "_base"))
    if both.empty or key[3] == baseline:
        return row | {"accuracy_delta": np.nan, "accuracy_p": np.nan, "accuracy_test": ""}
    means = both.groupby("doc_id")[["value", "value_base"]].mean().to_numpy(float).T
    found = stats.difference(*means)
    return row | {"accuracy_delta": found.value, "accuracy_p": found.p, "accuracy_test": found.test}


def _speedup_columns(name: str, found: stats.Interval | None) -> dict[str, float]:
    value, low, high = (found.value, found.low, found.high) if found else (np.nan, np.nan, np.nan)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _average(cells: list[Cell]) -> dict[str, Any]:
    """The unweighted mean over tasks of accuracy, rates and speedups; counts are added up."""
    table = pd.DataFrame([cell.row for cell in cells])
    first = cells[0].row
    numbers = table.select_dtypes("number")
    row = {**dict.fromkeys(first, np.nan), **numbers.mean(skipna=False).to_dict()}
    row |= {name: first[name] for name in (*SETUP, "method", "baseline", "repeats")}
    row |= {"task": AVERAGE, "metric": f"mean of {len(cells)} tasks", "accuracy_test": "", "accuracy_p": np.nan}
    row |= {"documents": int(table.documents.sum()), "errors": int(table.errors.sum())}
    row["accuracy_stderr"] = float(np.sqrt((table.accuracy_stderr**2).sum(skipna=False)) / len(cells))
    row |= {"peak_memory": table.peak_memory.max(), "drift": max(table.drift, key=abs)}
    row |= {"speedup_spread": np.nan, "accuracy_spread": np.nan}
    for name, times in (
        ("speedup_decode", [cell.times for cell in cells]),
        ("speedup_e2e", [cell.whole_times for cell in cells]),
    ):
        known = [one for one in times if one]
        row |= _speedup_columns(name, stats.average_speedup(known) if len(known) == len(cells) else None)
    return row


def check_alike(runs: Sequence[StoredRun], allowed: Sequence[str]) -> list[str]:
    """Compare what runs were made on. Returns lines for the table's caption; raises UserError on a real difference."""
    lines = []
    first = runs[0]
    known = (*MUST_AGREE, "dtype", "baseline", "documents", "prompts", "models")
    for field in allowed:
        if field not in known:
            raise UserError(f"--allow-mismatch {field}: no such field; there are {', '.join(known)}")
    for one, other in itertools.combinations(runs, 2):
        if one.manifest.get("started") and one.manifest == other.manifest:
            raise UserError(f"{other.folder} is a copy of {one.folder}; give one of them")
    for other in runs[1:]:
        differing = _differences(first, other)
        refused = [f"{field} ({text})" for field, text in differing.items() if field not in allowed]
        if refused:
            fields = " ".join(f"--allow-mismatch {field}" for field in differing if field not in allowed)
            raise UserError(
                f"{first.folder} and {other.folder} differ in {'; '.join(refused)}: their figures do not compare; "
                f"run both alike, or pass {fields}"
            )
        lines += [f"MISMATCH allowed, {first.name} / {other.name}: {f}: {text}" for f, text in differing.items()]
    for run in runs:
        if unknown := [key for key, value in run.conditions().items() if value is None and key != "baseline"]:
            lines.append(f"{run.name} does not tell its {', '.join(unknown)}: whether it compares is not known")
    return lines


def _differences(one: StoredRun, other: StoredRun) -> dict[str, str]:
    """What differs between two runs that should agree, in words, by field."""
    a, b = one.conditions(), other.conditions()
    found = {
        key: f"{_short(a[key])} / {_short(b[key])}" for key in a if None not in (a[key], b[key]) and a[key] != b[key]
    }
    mine, theirs = one.documents(), other.documents()
    shared = [task for task in mine if task in theirs]
    if counts := [f"{t}: {len(mine[t])} / {len(theirs[t])}" for t in shared if mine[t].keys() != theirs[t].keys()]:
        found["documents"] = "; ".join(counts)
    prompts = [t for t in shared if any(theirs[t].get(doc, text) != text for doc, text in mine[t].items())]
    settings, other_settings = one.manifest["generation"], other.manifest["generation"]
    prompts += [t for t in shared if t not in prompts and settings.get(t) != other_settings.get(t)]
    if prompts:
        found["prompts"] = f"of {', '.join(prompts)}"
    models, other_models = one.manifest["models"], other.manifest["models"]
    if one.plan.pair.name == other.plan.pair.name and models and other_models and models != other_models:
        found["models"] = f"two pairs are called {one.plan.pair.name}"
    return found


def _short(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def method_labels(runs: Sequence[StoredRun]) -> list[dict[str, str]]:
    """A label for each method of each run: its name, with the settings by which its namesakes differ."""
    namesakes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    facts: list[dict[str, dict[str, Any]]] = []
    for run in runs:
        inputs = run.manifest["inputs"]
        facts.append({m.name: _facts(m.method, m.values, inputs.get(m.name, {})) for m in run.plan.methods})
        for name, values in facts[-1].items():
            namesakes[name].append(values)
    labels: list[dict[str, str]] = []
    for methods in facts:
        labels.append({})
        for name, values in methods.items():
            differing = [k for k in values if any(other.get(k) != values[k] for other in namesakes[name])]
            text = ", ".join(f"{k}={values[k]}" for k in differing if k.removesuffix(HASH) == k or differing == [k])
            labels[-1][name] = f"{name} {text}" if text else name
    return labels


HASH = " hash"


def _facts(method: str, settings: dict[str, Any], inputs: dict[str, str]) -> dict[str, Any]:
    """All that makes a method what it is; files that it was given count by their hash."""
    return {**settings, **{f"{name}{HASH}": value for name, value in inputs.items()}, "method": method}


def uneven(runs: Measured) -> list[str]:
    """Tasks whose baseline was much faster in one run than in another: their tokens/s do not compare, speedups do."""
    lines = []
    for key, counts in runs.by_row.items():
        if key[3] == runs.baseline:
            sums = counts.groupby("run")[["decode", "decoded"]].sum()
            speeds = sums.decoded / sums.decode
            if len(speeds) > 1 and speeds.max() > (1 + metrics.DRIFT_BOUND) * speeds.min():
                lines.append(
                    f"{key[2]}: {runs.baseline} ran at {speeds.min():.0f} to {speeds.max():.0f} tokens/s in these "
                    "runs: compare speedups, not tokens/s"
                )
    return lines


def stalled(runs: Measured) -> list[str]:
    """Rows some of whose documents took far longer a token than the rest: something else had the machine."""
    lines = []
    for key, counts in runs.by_row.items():
        per_token = counts.decode / counts.decoded.replace(0, np.nan)
        slow = per_token > STALL * per_token.median()
        if slow.any():
            share = counts.decode[slow].sum() / counts.decode.sum()
            lines.append(
                f"{key[2]}, {key[3]}: {int(slow.sum())} of {len(counts)} texts took over {STALL} times the median a "
                f"token, {share:.0%} of the time; measure again on an idle machine"
            )
    return lines


def depth_table(runs: Measured) -> pd.DataFrame:
    """Acceptance at each draft position, a row for each pair, sampling, task, method and depth."""
    parts = []
    for key, counts in runs.depths.groupby(ROW, sort=False):
        table = metrics.acceptance_by_depth(counts)
        parts.append(table.assign(**dict(zip(ROW, key, strict=True)))[[*ROW, *table.columns]])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*ROW, *metrics.DEPTH])
