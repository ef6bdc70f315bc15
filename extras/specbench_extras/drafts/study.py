"""`specbench analyze drafts`: what drafts of one target are worth to a method, and what was to be expected of them.

A run for each draft, sampled. Next to the measured acceptance α stands the one that the two models' distributions
predict, 1 - TVD = Σ min(p, q): the mean over the very places that were tested, as both models read the texts again.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis import compare, pooled
from specbench.analysis.drafts import recorded_rounds
from specbench.analysis.metrics import interval_columns
from specbench.base import stats
from specbench.config import MethodSpec, ModelSpec, PairSpec, UserError, load_method
from specbench.config.prompts import prompt_lines
from specbench.engine.models.folders import ADAPTER
from specbench.engine.types import Sampling
from specbench.measure.prepare import load_models_of
from specbench.plan import Plan
from specbench.results.stored import StoredRun
from specbench_extras.drafts.read_again import Prompts
from specbench_extras.drafts.two_readings import KEY, distributions, texts_to_read

Counts = dict[str, list[tuple[float, float]]]  # by task: overlap and tested places of each document


@dataclass(frozen=True)
class Drafts:
    """What each draft gave; means over tasks, as in the row `average` of a comparison."""

    method: str
    sampling: str
    target: str
    # pair, documents, tested; alpha, predicted, tau, mbsu and speedup with _low and _high (95 %); cost (parameters of
    # the draft over the target's), draft_forwards (a round); gain with bounds: τ over the first run's, by document.
    table: pd.DataFrame
    mismatches: list[str]


def drafts(
    runs: Sequence[StoredRun],
    method: str | None = None,
    allowed: Sequence[str] = (),
    advance: Callable[[int], None] = lambda count: None,
) -> Drafts:
    """Compare the drafts of sampled runs of one target; `advance` is called after each text that was read again.

    `method` is by default the first that is sps. Raises UserError for runs that do not compare, have other targets, or
    whose texts cannot be read again.
    """
    targets = {run.manifest["models"].get("target", {}).get("weights_hash") for run in runs}
    if len(targets) > 1:
        raise UserError("these runs have different targets; give runs with other drafts of one target")
    name = method or next((spec.name for spec in runs[0].plan.methods if spec.method == "sps"), None)
    if name is None:
        raise UserError(f"{runs[0].folder} has no method sps; name another by --method")
    figures = pooled.measured(runs, allowed)
    texts = [texts_to_read(run, name) for run in runs]
    summary = compare.summary(figures)
    rows, first = [], None
    for number, (run, of_run) in enumerate(zip(runs, texts, strict=True)):
        counts = figures.counts.xs(number, level="run", drop_level=False)
        counts = counts[counts.index.get_level_values("method") == name]
        mine = summary[(summary.pair == run.plan.pair.name) & (summary.method == name)]
        if mine.empty:
            raise UserError(f"{name} has other settings in {run.folder} than in {runs[0].folder}; run all alike")
        row = mine.iloc[-1]  # the average, or the only task
        overlaps = predicted(run, name, of_run, advance)
        rows.append({"pair": run.plan.pair.name} | _figures(run, counts, row, overlaps))
        first = counts if first is None else first
        rows[-1] |= interval_columns("gain", gain(first, counts) if number else None)
    return Drafts(name, runs[0].sampling, runs[0].plan.pair.target.model, pd.DataFrame(rows), figures.mismatches)


def _figures(run: StoredRun, counts: pd.DataFrame, row: "pd.Series[Any]", overlaps: Counts) -> dict[str, Any]:
    by_task = list(by_document(counts).groupby(level="task", sort=False))
    alpha = stats.average_rate([_columns(part.A, part.A + part.J) for _, part in by_task])
    foretold = stats.average_rate([_columns(*zip(*pairs, strict=True)) for pairs in overlaps.values()])
    cost, forwards = parameters(run), float(counts.G.sum() / max(1.0, counts.R.sum()))
    bound = 1 + cost * forwards
    tau = stats.Interval(row.tau, row.tau_low, row.tau_high)
    return {
        "documents": int(row.documents),
        "tested": int((counts.A + counts.J).sum()),
        **interval_columns("alpha", alpha),
        **interval_columns("predicted", foretold),
        **interval_columns("tau", tau),
        **interval_columns("mbsu", stats.Interval(tau.value / bound, tau.low / bound, tau.high / bound)),
        **{key.replace("_decode", ""): row[key] for key in row.index if key.startswith("speedup_decode")},
        "cost": cost,
        "draft_forwards": forwards,
    }


def by_document(counts: pd.DataFrame) -> pd.DataFrame:
    """The sums over repeats of A, J, C and R, by task and document."""
    return counts[["A", "J", "C", "R"]].groupby(level=["task", "doc_id"], sort=False).sum()


def _columns(over: Any, under: Any) -> tuple[stats.Floats, stats.Floats]:
    return np.asarray(over, float), np.asarray(under, float)


def parameters(run: StoredRun) -> float:
    """The draft's parameters over the target's: c of MBSU (FastDraft, arXiv 2411.11055); NaN if they are not known."""
    models = run.manifest["models"]
    sizes = [models.get(role, {}).get("parameters") for role in ("draft", "target")]
    return sizes[0] / sizes[1] if all(sizes) else math.nan


def gain(first: pd.DataFrame, other: pd.DataFrame) -> stats.Interval | None:
    """τ over that of the first run, on the same documents, in pairs; the mean over tasks."""
    both = by_document(first).join(by_document(other), how="inner", lsuffix="_first")
    parts = [part for _, part in both.groupby(level="task", sort=False)]
    columns = [[part[name].to_numpy(float) for name in ("R_first", "C_first", "R", "C")] for part in parts]
    return stats.average_speedup([stats.Paired(*four) for four in columns])  # rounds a token, as seconds a token


def predicted(run: StoredRun, method: str, texts: Sequence[dict[str, Any]], advance: Callable[[int], None]) -> Counts:
    """Σ min(p, q) over the tested places of each document, and how many these are.

    A place is tested if its draft token was accepted, or was the first of its round that was not.
    """
    pair = load_models_of(run)
    pair.need_one_tokenizer("it cannot read the texts token by token")
    sessions = pair.session("target"), pair.session("draft")
    prompts = Prompts(run, pair)
    sampling, places = Sampling(**run.plan.sampling.model_dump()), tested_places(run, method)
    sums: dict[tuple[str, int], tuple[float, float]] = {}
    for row in texts:
        document, tokens = (row["task"], row["doc_id"]), list(row["tokens"])
        overlaps = [
            float(np.minimum(p, q).sum()) for p, q in distributions(*sessions, prompts.tokens(row), tokens, sampling)
        ]
        tested = places.get((row["repeat"], *document), [])
        before = sums.get(document, (0.0, 0.0))
        sums[document] = before[0] + sum(overlaps[place - 1] for place in tested), before[1] + len(tested)
        advance(1)
    counts: Counts = {}
    for (task, _), pair_of_sums in sums.items():
        counts.setdefault(task, []).append(pair_of_sums)
    return counts


def tested_places(run: StoredRun, method: str) -> dict[tuple[Any, ...], list[int]]:
    """By repeat, task and document: the places in the text, from 1 on, at which a draft token was tested."""
    places: dict[tuple[Any, ...], list[int]] = {}
    lengths: dict[tuple[Any, ...], int] = {}
    for row in recorded_rounds(run, method):  # in order within a text
        key = tuple(row[column] for column in KEY[:-1])
        start = lengths.get(key, 0)
        lengths[key] = start + row["committed"]
        rejected = not row["truncated"] and row["accepted"] < row["drafted"]
        places.setdefault(key, []).extend(range(start, start + row["accepted"] + rejected))
    return places


def evaluations(
    pair: PairSpec,
    draft: Path,
    spec: MethodSpec,
    prompts: Path,
    seed: int,
    device: str,
    dtype: str,
    runtime: str = "auto",
) -> Iterator[tuple[Plan, Path]]:
    """Runs that decode prompts at temperature 1, plainly and by a method, with a pair's draft and with another one.

    Their folders are DRAFT.before and DRAFT.after.
    """
    trained = ModelSpec(model=str(draft), dtype=pair.draft.dtype if pair.draft else "auto")
    if pair.draft and (draft / ADAPTER[0]).is_file():
        trained = pair.draft.model_copy(update={"adapter": str(draft)})
    described = f"the pair {pair.name} with the draft {draft.name}"
    changed = {"name": f"{pair.name}+{draft.name}", "description": described, "draft": trained}
    for name, chosen in (("before", pair), ("after", pair.model_copy(update=changed))):
        plan = Plan(
            pair=chosen,
            methods=(load_method("vanilla"), spec),
            baseline="vanilla",
            suite=prompts.stem,
            tasks=prompt_lines(prompts, None),
            prompts=str(prompts.resolve()),
            temperature=1.0,
            seed=seed,
            device=device,
            dtype=dtype,
            runtime=runtime,
        )
        yield plan, draft.with_name(f"{draft.name}.{name}")
