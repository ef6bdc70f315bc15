"""`specbench analyze complementarity`: what the target, the draft or either of them solves; what a method recovers.

CoSpec (arXiv 2605.24793, section 4.3 and Table 2). Recorded answers are matched text by text; nothing is decoded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy

from specbench.analysis.metrics import headline_scores, interval_columns
from specbench.base.stats import Floats, Interval, difference, resampled_rates
from specbench.config import MethodSpec, UserError
from specbench.results.stored import StoredRun

ALLOWED = ("sampling", "documents", "generation")
LEAST = 0.95  # the share of resamples in which a ratio must be defined for it to have an interval
ATTEMPT = ["repeat", "doc_id"]


@dataclass(frozen=True)
class Complementarity:
    """Figures of one run. Counts are of texts if scores are 0 or 1; for graded scores they are sums of scores."""

    run: str
    pair: str
    sampling: str
    temperature: float
    target: str  # the method that decodes with the target alone
    draft: str  # the run and method that decode with the draft alone
    repeats: int
    # task, graded, total, then target, draft, union, gap (union less target), each as a sum, with NAME_low and
    # NAME_high of its mean over texts (95 %: Wilson's, or a bootstrap over documents if these have several scores)
    tasks: pd.DataFrame
    # task, graded, method, correct (_low, _high as above), difference (of the mean from the target's), p (McNemar's of
    # right-or-wrong scores, of a permutation of graded ones), recovery (_low, _high: paired bootstrap over documents)
    methods: pd.DataFrame
    left_out: int  # texts of the target without a score of the draft or of a method

    @property
    def graded(self) -> bool:
        return bool(self.tasks.graded.any())


def complementarity(
    run: StoredRun, method: str | None = None, other: StoredRun | None = None, allowed: Sequence[str] = ()
) -> Complementarity:
    """Compare the methods of a run (or one of them) with what its target and its draft solve, task by task.

    The target's answers are those of vanilla decoding. The draft's are those of `member` (model=draft) in the run or in
    `other`, or of vanilla decoding in `other` if its target is this draft. Lossless methods are left out unless named.
    `other` may differ in the fields of `allowed`. Raises UserError if answers are missing or do not match.
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
        complete = table.dropna()
        left_out += int(table.target.notna().sum()) - len(complete)
        if complete.empty:
            continue
        union = complete[["target", "draft"]].max(axis=1)
        graded = not complete.isin([0, 1]).all(axis=None)
        facts: dict[str, Any] = {"task": task, "graded": graded}
        row = facts | {"total": len(complete)}
        for name, values in (
            ("target", complete.target),
            ("draft", complete.draft),
            ("union", union),
            ("gap", union - complete.target),
        ):
            row |= interval_columns(name, share(values, graded)) | {name: values.sum()}
        tasks.append(row)
        for name in chosen:
            scores = complete[f"method {name}"]
            change = difference(per_document(scores), per_document(complete.target))
            figures = facts | {"method": name} | interval_columns("correct", share(scores, graded))
            figures |= {"correct": scores.sum(), "difference": change.value, "p": change.p}
            recovery = pooled(per_document(scores - complete.target), per_document(union - complete.target))
            methods.append(figures | interval_columns("recovery", recovery))
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
    """The method of a run that decodes with the target alone. Raises UserError if there is none."""
    for spec in run.plan.methods:
        if spec.method == "vanilla":
            return spec.name
    raise UserError(f"{run.folder} does not have the target alone; run it again with --baseline vanilla")


def draft_of(run: StoredRun, other: StoredRun | None) -> tuple[StoredRun, str]:
    """The run and the method that decode with a run's draft alone. Raises UserError if there is none."""
    source = other or run
    facts = (run.manifest.get("models") or {}).get("draft")
    if facts is None:
        raise UserError(f"the pair of {run.folder} has no draft model, so there is nothing that complements the target")
    models = source.manifest.get("models") or {}
    alone = [(spec, "draft") for spec in source.plan.methods if _drafts_alone(spec)]
    if other is not None:
        alone += [(spec, "target") for spec in source.plan.methods if spec.method == "vanilla"]
    for spec, role in alone:
        if source is run or (models.get(role) or {}).get("weights_hash") == facts.get("weights_hash", "unknown"):
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
    options: dict[str, Any] = {"limit": plan.limit, "split": plan.split, "data-dir": plan.data_dir}
    options |= {"seed": plan.seed or None, "repeats": plan.repeats if plan.repeats > 1 else None}
    options |= {"temperature": plan.temperature or None, "top-k": plan.top_k or None}
    options |= {"top-p": plan.top_p if plan.top_p < 1 else None}
    for name, value in options.items():
        words += [f"--{name}", str(value)] if value is not None else []
    words += ["--apply-chat-template"] * plan.chat_template
    folder = f"{run.folder}-draft"
    return f"`specbench run {' '.join(words)} --out {folder}` makes it, then add --draft {folder}"


def same_documents(run: StoredRun, other: StoredRun, allowed: Sequence[str]) -> None:
    """Raise UserError if two runs have other prompts, or differ in a field of ALLOWED that is not `allowed`."""
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
    """The names of the methods to compare with the target: `method`, or all that may differ from it."""
    names = [spec.name for spec in run.plan.methods]
    if method is not None:
        if method not in names:
            raise UserError(f"{run.folder} has no method {method}; it has {', '.join(names)}")
        return [method]
    same = {target, *run.manifest.get("lossless", ())}
    return [spec.name for spec in run.plan.methods if spec.name not in same and spec.method != "member"]


def by_attempt(scores: pd.DataFrame, task: str, method: str) -> pd.Series:
    """A method's scores on a task, by repeat and document."""
    return scores[(scores.task == task) & (scores.method == method)].set_index(ATTEMPT).value


def per_document(values: pd.Series) -> Floats:
    """Means over repeats [documents]."""
    return values.groupby(level="doc_id").mean().to_numpy(float)


def share(values: pd.Series, graded: bool) -> Interval:
    """A mean over texts with its 95 % interval: Wilson's if each document has a single score of 0 or 1."""
    if not (graded or values.index.get_level_values("doc_id").has_duplicates):
        wilson = scipy.stats.binomtest(int(values.sum()), len(values)).proportion_ci(method="wilson")
        return Interval(float(values.mean()), float(wilson.low), float(wilson.high))
    means = per_document(values)
    return pooled(means, np.ones_like(means))


def pooled(numerators: Floats, denominators: Floats) -> Interval:
    """A ratio of sums over documents, with a bootstrap over documents; NaN bounds if it is often undefined."""
    total = denominators.sum()
    value = float(numerators.sum() / total) if total else math.nan
    if len(numerators) < 2 or not total:
        return Interval(value, math.nan, math.nan)
    return Interval(value, *quantiles(resampled_rates(numerators[None], denominators[None])[0]))


def quantiles(drawn: Floats) -> tuple[float, float]:
    """The 95 % interval of resamples; NaN if too few of them are finite."""
    finite = drawn[np.isfinite(drawn)]
    if len(finite) < LEAST * len(drawn):
        return math.nan, math.nan
    low, high = np.quantile(finite, [0.025, 0.975])
    return float(low), float(high)
