"""`specbench analyze complementarity`: what target, draft, or either of them solves, and what a method recovers.

CoSpec (arXiv 2605.24793, section 4.3 and Table 2). Answers are matched text by text; none is decoded here.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest

from specbench import files, published
from specbench.config import MethodSpec, UserError
from specbench.escape import cell
from specbench.published import Figure
from specbench.stats import Interval, difference, resampled_rates
from specbench.stored import StoredRun

Floats = NDArray[np.float64]
Rows = Sequence[tuple[str, str, float, str]]  # method, metric, value, unit of printed cells

PAPER, TABLE = "cospec", 2
FIELDS = list(Figure.model_fields)
ALLOWED = ("sampling", "documents", "generation")
LEAST = 0.95  # the share of resamples in which a ratio must be defined for it to have an interval
ATTEMPT = ["repeat", "doc_id"]
AS_BASELINE = "lossless"  # what the descriptions of such methods end with


@dataclass(frozen=True)
class Complementarity:
    """Figures of one run. Of right-or-wrong scores counts are of texts; of graded ones they are sums of scores."""

    run: str
    pair: str
    sampling: str
    temperature: float
    target: str  # the method that is the target alone
    draft: str  # run and method that are the draft alone
    repeats: int
    # task, graded, total, then target, draft, union, gap (union less target), each as a sum, and of its mean over texts
    # NAME_low and NAME_high (95 %: Wilson's, or over documents by bootstrap where a document has several scores)
    tasks: pd.DataFrame
    # task, graded, method, correct (_low, _high as above), difference (of the mean from the target's), p (McNemar's of
    # right-or-wrong scores, of a permutation of graded ones), recovery (_low, _high: paired bootstrap over documents)
    methods: pd.DataFrame
    left_out: int  # texts of the target that lack a score of the draft or of a method

    @property
    def graded(self) -> bool:
        return bool(self.tasks.graded.any())


def complementarity(
    run: StoredRun, method: str | None = None, other: StoredRun | None = None, allowed: Sequence[str] = ()
) -> Complementarity:
    """The methods of a run (or one) against what its target and its draft solve, task by task.

    The target's answers are those of vanilla decoding; the draft's are those of `member` (model=draft) in the run or in
    `other`, or of vanilla decoding there if its target is this draft. Methods that are lossless are left out unless
    asked for. `other` may differ in what is `allowed`. Raises UserError where answers are missing or do not match.
    """
    target = vanilla_of(run)
    source, draft = draft_of(run, other)
    if other is not None:
        same_documents(run, other, allowed)
    chosen = chosen_methods(run, target, method)
    mine, theirs = headline_scores(run), headline_scores(source)
    tasks, methods, left_out = [], [], 0
    for task in dict.fromkeys(line.task for line in run.plan.tasks):
        columns = {"target": by_attempt(mine, task, target), "draft": by_attempt(theirs, task, draft)}
        columns |= {f"method {name}": by_attempt(mine, task, name) for name in chosen}
        table = pd.DataFrame(columns)
        known = table.dropna()
        left_out += int(table.target.notna().sum()) - len(known)
        if known.empty:
            continue
        union = known[["target", "draft"]].max(axis=1)
        graded = not known.isin([0, 1]).all(axis=None)
        facts: dict[str, Any] = {"task": task, "graded": graded}
        row = facts | {"total": len(known)}
        for name, values in (
            ("target", known.target),
            ("draft", known.draft),
            ("union", union),
            ("gap", union - known.target),
        ):
            row |= {name: values.sum()} | bounds(name, share(values, graded))
        tasks.append(row)
        for name in chosen:
            own = known[f"method {name}"]
            change = difference(per_document(own), per_document(known.target))
            found = facts | {"method": name, "correct": own.sum()} | bounds("correct", share(own, graded))
            found |= {"difference": change.value, "p": change.p}
            recovery = pooled(per_document(own - known.target), per_document(union - known.target))
            methods.append(found | {"recovery": recovery.value} | bounds("recovery", recovery))
    if not tasks:
        raise UserError(f"{run.folder} and the draft's answers have no scored document in common; run both alike")
    return Complementarity(
        run.name,
        run.plan.pair.name,
        run.sampling,
        run.plan.temperature,
        target,
        draft if source is run else f"{source.name}, {draft}",
        run.plan.repeats,
        pd.DataFrame(tasks),
        pd.DataFrame(methods),
        left_out,
    )


def vanilla_of(run: StoredRun) -> str:
    """The method of a run that is the target alone."""
    for spec in run.plan.methods:
        if spec.method == "vanilla":
            return spec.name
    raise UserError(f"{run.folder} does not have the target alone; run it anew with --baseline vanilla")


def draft_of(run: StoredRun, other: StoredRun | None) -> tuple[StoredRun, str]:
    """The run and the method that are the draft of a run alone. Raises UserError where there is none."""
    source = other or run
    told = (run.manifest.get("models") or {}).get("draft")
    if told is None:
        raise UserError(f"the pair of {run.folder} has no draft model, so there is nothing that complements the target")
    models = source.manifest.get("models") or {}
    alone = [(spec, "draft") for spec in source.plan.methods if _drafts_alone(spec)]
    if other is not None:
        alone += [(spec, "target") for spec in source.plan.methods if spec.method == "vanilla"]
    for spec, role in alone:
        if source is run or (models.get(role) or {}).get("weights_hash") == told.get("weights_hash", "unknown"):
            return source, spec.name
    if other is not None and alone:
        raise UserError(f"no model that decodes alone in {other.folder} is the draft of {run.folder}; {remedy(run)}")
    raise UserError(f"{source.folder} does not have the draft alone; {remedy(run)}")


def _drafts_alone(spec: MethodSpec) -> bool:
    return spec.method == "member" and spec.values.get("model", "draft") == "draft"


def remedy(run: StoredRun) -> str:
    """The command that makes the draft's answers to the documents of a run."""
    plan = run.plan
    words = ["--pair", plan.pair.name, "--suite", plan.suite, "--method", "member", "--baseline", "none"]
    given: dict[str, Any] = {"limit": plan.limit, "split": plan.split, "data-dir": plan.data_dir}
    given |= {"seed": plan.seed or None, "repeats": plan.repeats if plan.repeats > 1 else None}
    given |= {"temperature": plan.temperature or None, "top-k": plan.top_k or None}
    given |= {"top-p": plan.top_p if plan.top_p < 1 else None}
    for name, value in given.items():
        words += [f"--{name}", str(value)] if value is not None else []
    words += ["--apply-chat-template"] * plan.chat_template
    folder = f"{run.folder}-draft"
    return f"`specbench run {' '.join(words)} --out {folder}` makes it, then add --draft {folder}"


def same_documents(run: StoredRun, other: StoredRun, allowed: Sequence[str]) -> None:
    """Raise UserError where two runs were asked otherwise, or drew otherwise, unless that is `allowed`."""
    for field in allowed:
        if field not in ALLOWED:
            raise UserError(f"--allow-mismatch {field}: no such field here; there are {', '.join(ALLOWED)}")
    mine, theirs = run.documents(), other.documents()
    for task, documents in mine.items():
        there = theirs.get(task, {})
        if any(there.get(number, hash) != hash for number, hash in documents.items()):
            raise UserError(f"{run.folder} and {other.folder} have other prompts in {task}; run both alike")
    generation = run.manifest["generation"], other.manifest["generation"]
    differing = {
        "sampling": run.plan.sampling != other.plan.sampling,
        "documents": any(not documents.keys() <= theirs.get(task, {}).keys() for task, documents in mine.items()),
        "generation": any(generation[0].get(task) != generation[1][task] for task in mine if task in generation[1]),
    }
    for field, differs in differing.items():
        if differs and field not in allowed:
            raise UserError(
                f"{run.folder} and {other.folder} differ in {field}; {remedy(run)}, or pass --allow-mismatch {field}"
            )


def chosen_methods(run: StoredRun, target: str, method: str | None) -> list[str]:
    """The names of the methods to set against the target: one, or all that may leave it."""
    names = [spec.name for spec in run.plan.methods]
    if method is not None:
        if method not in names:
            raise UserError(f"{run.folder} has no method {method}; it has {', '.join(names)}")
        return [method]
    rest = [spec for spec in run.plan.methods if spec.name != target and spec.method != "member"]
    return [spec.name for spec in rest if f"({AS_BASELINE}" not in spec.description]


def headline_scores(run: StoredRun) -> pd.DataFrame:
    """Scores of documents by each task's headline metric. Raises UserError for an unfinished run."""
    scores = run.scores()
    wanted = scores.task.map(run.headline()) == scores.metric + "," + scores["filter"]
    return scores[wanted & scores.doc_id.notna()].astype({"doc_id": int})


def by_attempt(scores: pd.DataFrame, task: str, method: str) -> pd.Series:
    """A method's scores on a task, by repeat and document."""
    return scores[(scores.task == task) & (scores.method == method)].set_index(ATTEMPT).value


def per_document(values: pd.Series) -> Floats:
    """Means over repeats [documents]."""
    return values.groupby(level="doc_id").mean().to_numpy(float)


def share(values: pd.Series, graded: bool) -> Interval:
    """A mean over texts with its 95 % interval: Wilson's for one score a document that is right or wrong."""
    if not (graded or values.index.get_level_values("doc_id").has_duplicates):
        found = binomtest(int(values.sum()), len(values)).proportion_ci(method="wilson")
        return Interval(float(values.mean()), float(found.low), float(found.high))
    own = per_document(values)
    return pooled(own, np.ones_like(own))


def pooled(numerators: Floats, denominators: Floats) -> Interval:
    """A ratio of sums over documents with a bootstrap over them; NaN bounds for one document, or if often undefined."""
    total = denominators.sum()
    value = float(numerators.sum() / total) if total else math.nan
    if len(numerators) < 2 or not total:
        return Interval(value, math.nan, math.nan)
    return Interval(value, *quantiles(resampled_rates(numerators[None], denominators[None])[0]))


def quantiles(drawn: Floats) -> tuple[float, float]:
    """The 95 % interval of resamples; NaN where too few of them are defined."""
    known = drawn[np.isfinite(drawn)]
    if len(known) < LEAST * len(drawn):
        return math.nan, math.nan
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def bounds(name: str, one: Interval) -> dict[str, float]:
    return {f"{name}_low": one.low, f"{name}_high": one.high}


def paper_label(spec: MethodSpec, pair: str) -> str:
    """What the paper's tables call a method: CoSpec where it has the settings that stand for it, else our name."""
    (paper,) = published.papers([PAPER])
    figures = [figure for figure in paper.figures(TABLE) if figure.method == "CoSpec"]
    known = {own.identity for figure in figures if (own := paper.method_spec(figure, pair))}
    return "CoSpec" if spec.identity in known else spec.name


def cells(run: StoredRun, found: Complementarity) -> list[dict[str, Any]]:
    """The right-or-wrong tasks in the form of the published table; no cell where nothing is defined."""
    specs = {spec.name: spec for spec in run.plan.methods}
    rows = []
    for one in found.tasks[~found.tasks.graded].itertuples():
        own = found.methods[found.methods.task == one.task] if len(found.methods) else found.methods
        told: list[tuple[str, str, float, str]] = [
            ("", "Total", one.total, "count"),
            ("Target only", "Target correct", one.target, "count"),
            ("Draft", "Draft correct", one.draft, "count"),
            ("Oracle union", "Oracle union", one.union, "count"),
        ]
        for each in own.itertuples():
            if not math.isnan(each.recovery):
                label = paper_label(specs[each.method], found.pair)
                told.append((label, "CoSpec recovery", 100 * each.recovery, "%"))
        rows += as_cells(TABLE, found.pair, one.task, found.temperature, told)
    return rows


def as_cells(
    table: int, pair: str, task: str, temperature: float, rows: Rows, setting: str = ""
) -> list[dict[str, Any]]:
    """Rows of a tidy file of figures."""
    facts = {"paper": PAPER, "table": table, "pair": pair, "task": task, "temperature": f"{temperature:g}"}
    return [
        facts | {"method": method, "setting": setting, "metric": metric, "value": f"{value:.6g}", "unit": unit}
        for method, metric, value, unit in rows
    ]


def write_cells(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A file that `specbench tables` reads beside runs (results/published has the form)."""
    with files.whole(path) as new, open(new, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: cell(value) for key, value in row.items()} for row in rows)
