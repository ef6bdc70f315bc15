"""Which claims of the papers hold in our runs: the sign of each claim, on each of its data sets once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specbench.base import stats
from specbench.papers.on_pair import MISSING, SPEEDS, OnPair
from specbench.papers.ours import Ours
from specbench.papers.published import CellClaim, Claim, Figure, Paper
from specbench.papers.texts import Cell, ratio_text
from specbench.report.columns import p_text

LEVEL = 0.05
ALIKE = 0.05  # of the documents: two methods that differ on fewer say nothing of a setting in which they differ
ROUNDS = ["R", "D", "A", "C", "S"]  # by which two methods decode a document alike
FORWARDS = ["F", "G"]  # and, where speed is compared, take as many forwards for it
FEWEST_DOCUMENTS = 20  # of a data set; the interval of fewer is not to be believed
PACE_APART = 1.25  # times that a baseline may be slower in one of two runs whose speedups are compared
COLLAPSED = 0.7  # of its target's score: a method with less does no longer what it is compared for
# Metric -> numerator and denominator of its rate, in columns of `Ours.documents`.
RATES = {
    "speedup_decode": ("decoded", "decode"),
    "tokens_per_s": ("decoded", "decode"),
    "speedup_e2e": ("whole_tokens", "whole"),
    "acceptance_rate": ("A", "D"),
    "tau": ("C", "R"),
    "accuracy": ("score", "one"),
}
BOUNDS = {"accuracy": f"p < {LEVEL}"}
RATIO = "95 % interval of the ratio, without 1"
VERDICTS = ("holds", "fails", "undecided", "void", "too few documents")
UNJUDGED = "not judged"


@dataclass(frozen=True)
class Check:
    """A claim or an order, with our verdict and the figures that it rests on."""

    paper: str
    table: int
    claim: str
    verdict: str  # one of VERDICTS, how often which of them, not judged, or not measured
    method: str = "-"  # our method that the claim puts ahead
    baseline: str = "-"  # our method that the claim's is compared with
    data_sets: int = 0  # that count: pair, sampling and task
    documents: int = 0  # of the smallest of these data sets
    tests: int = 0  # intervals or p values that the verdict rests on
    bound: str = "-"  # what a figure must reach to hold or fail
    detail: str = ""


@dataclass(frozen=True)
class Compared:
    """The verdict on one data set, or on the average of a mixture, and what it rests on."""

    verdict: str
    pair: str
    sampling: str
    text: str
    data_sets: int
    documents: int
    value: float  # the difference or the ratio


def claims(chosen: Sequence[Paper], ours: Ours) -> list[Check]:
    """All claims of the papers in their order, those about single cells after the others."""
    return [
        check
        for paper in chosen
        for check in (
            *(_claim(paper, claim, ours) for claim in paper.claims),
            *(_of_cells(paper, claim, ours) for claim in paper.cell_claims),
        )
    ]


def _of_cells(paper: Paper, claim: CellClaim, ours: Ours) -> Check:
    """Our cells next to the printed ones; of printed tasks with one stand-in the first.

    A cell is judged if the claim names a bound and ours has an interval.
    """
    figures = [f for f in paper.figures(claim.table) if f.metric == claim.metric and claim.method in (None, f.method)]
    places = [(f.pair, f.method, f.setting, ours.tasks(paper, claim.table, f.task) or f.task) for f in figures]
    first = {place: figure for place, figure in reversed(list(zip(places, figures, strict=True)))}
    cells = [(f, cell) for f in reversed(first.values()) if (cell := ours.of_files(paper, f)) and claim.counts(f)]
    if not cells:
        others = [f for f, _ in ours.figures if (f.table, f.metric) == (claim.table, claim.metric)]
        here = [f"{f.value} {f.unit} on {f.task or f.setting}" for f in others if f.paper == paper.paper]
        why = f"no {claim.metric} of ours on its tasks"
        if here:
            why = "; ".join([claim.missing or why, f"no part of the claim: {', '.join(here)}"])
        return Check(paper.paper, claim.table, claim.text, MISSING, detail=why)
    parts: dict[str, list[str]] = {verdict: [] for verdict in (*VERDICTS[:3], UNJUDGED)}
    for figure, cell in cells:
        name = " ".join(part for part in (figure.task, figure.setting) if part) or figure.method
        verdict = _beyond(cell, claim.above) if claim.can_show(figure) else UNJUDGED
        parts[verdict].append(f"{name}: {cell.text} ({figure.value} {figure.unit})")
    detail = "; ".join(f"{verdict}: {', '.join(places)}" for verdict, places in parts.items() if places)
    return Check(
        paper.paper,
        claim.table,
        claim.text,
        together({verdict: len(places) for verdict, places in parts.items()}, claim.everywhere),
        data_sets=len(cells),
        tests=sum(len(parts[verdict]) for verdict in VERDICTS[:3]),
        bound="-" if claim.above is None else f"95 % interval above {claim.above:g} {figures[0].unit}",
        detail="; ".join(part for part in ("ours (the paper's)", detail, claim.note) if part),
    )


def _beyond(cell: Cell, above: float | None) -> str:
    """The verdict on a cell by its interval."""
    if above is None or cell.bounds is None:
        return UNJUDGED
    low, high = cell.bounds
    return "holds" if low > above else "fails" if high < above else "undecided"


def _claim(paper: Paper, claim: Claim, ours: Ours) -> Check:
    """A claim, on each of its tasks and pairs that we have."""
    if needs := claim.needs or paper.tables[claim.table].needs:
        return Check(paper.paper, claim.table, claim.text, MISSING, detail=f"not here: {needs}")
    results: list[Compared] = []
    missing: list[str] = []
    methods: dict[str, None] = {}
    baselines: dict[str, None] = {}
    for pair in ours.of_table(paper, claim.table):
        higher = pair.method(paper, claim.table, claim.higher, claim.higher_setting)
        lowers = _lowers(pair, paper, claim)
        lacking = [name for name, label in lowers if label is None]
        if higher is None or lacking or claim.metric not in RATES:
            missing.append(claim.higher if higher is None else lacking[0] if lacking else claim.metric)
            continue
        every = pair.figures(paper, claim.table)
        figures = [figure for figure in every if claim.tasks is None or figure.task in claim.tasks]
        if any(figure.is_average for figure in figures):  # an average stands for all tasks of its table, one by one
            figures += every
        for sampling, name, tasks in once(_places(paper, figures, pair, claim.without)):
            against = [low for _, low in lowers if low and comparable(pair, (higher, low), claim.metric)]
            of_each = [_compare(pair, claim, (higher, low), sampling, name, tasks) for low in against]
            known = [compared for compared in of_each if compared]
            results += [min(known, key=lambda compared: compared.value)] if known else []  # against the best of them
        methods |= {higher: None}
        baselines |= dict.fromkeys(low for _, low in lowers if low)
    if not results:
        why = f"no {missing[0]} in these runs" if missing else "none of its tasks in these runs"
        why = why if any(ours.of_table(paper, claim.table)) else "none of its pairs is met by one of these runs"
        return Check(paper.paper, claim.table, claim.text, MISSING, detail=why)
    notes = dict.fromkeys(note for pair in ours.of_table(paper, claim.table) for note in paper.notes(claim, pair.pair))
    parts: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    several = {name: len({getattr(result, name) for result in results}) > 1 for name in ("pair", "sampling")}
    for result in results:
        where = [getattr(result, name) for name, differs in several.items() if differs]
        parts[result.verdict].append(" ".join([*where, result.text]))
    return Check(
        paper.paper,
        claim.table,
        claim.text,
        together({verdict: len(places) for verdict, places in parts.items()}),
        method=", ".join(methods),
        baseline=", ".join(baselines),
        data_sets=sum(result.data_sets for result in results),
        documents=min(result.documents for result in results),
        tests=len(results),
        bound=BOUNDS.get(claim.metric, RATIO),
        detail="; ".join([*(f"{verdict}: {', '.join(places)}" for verdict, places in parts.items() if places), *notes]),
    )


def together(counts: Mapping[str, int], everywhere: bool = False) -> str:
    """One verdict for several data sets, given how many have which: theirs, if all agree, else the counts.

    What is claimed to be so `everywhere` fails with one of them, so those that fail are named first.
    """
    known = {verdict: count for verdict, count in counts.items() if count}
    if everywhere and "fails" in known:
        known = {"fails": known.pop("fails"), **known}
    (first, count), *others = known.items()
    if not others:
        return first
    return ", ".join([f"{first} on {count} of {sum(known.values())}", *(f"{name} on {n}" for name, n in others)])


def _lowers(pair: OnPair, paper: Paper, claim: Claim) -> list[tuple[str, str | None]]:
    """What a claim's method is compared with, each method's name with our label of it; None for what was not run.

    A rival with the name of the table's own method is another setting of it, and stands next to it.
    """
    in_table = pair.method(paper, claim.table, claim.lower, claim.lower_setting)
    first = [] if claim.lower_with else [(claim.lower, in_table)]
    return list(dict.fromkeys([*first, *((spec.name, pair.label(spec)) for spec in paper.rivals(claim))]))


def comparable(pair: OnPair, labels: Sequence[str], metric: str) -> bool:
    """False for speeds with different baselines: times are in units of each method's baseline."""
    return metric not in SPEEDS or len({pair.measured.baselines.get(label) for label in labels}) == 1


def once(places: Iterator[tuple[str, str, tuple[str, ...]]]) -> list[tuple[str, str, tuple[str, ...]]]:
    """The places of a claim with every data set in one of them: a mixture leaves out tasks that count alone."""
    known = list(dict.fromkeys(places))
    alone = {(sampling, tasks) for sampling, _, tasks in known if len(tasks) == 1}
    rest: list[tuple[str, str, tuple[str, ...]]] = []
    for sampling, name, tasks in known:
        if len(tasks) > 1:
            tasks = tuple(task for task in tasks if (sampling, (task,)) not in alone)
            name = (
                f"{name} ({tasks[0] if len(tasks) == 1 else f'the average of {len(tasks)} tasks'})" if tasks else name
            )
        rest += [(sampling, name, tasks)] if tasks else []
    return rest


def _places(
    paper: Paper, figures: Sequence[Figure], ours: OnPair, without: Sequence[str]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Our sampling, a name and our tasks for each figure of a task."""
    for figure in figures:
        tasks = () if figure.is_average else ours.tasks(paper, figure.task)
        if tasks := tuple(task for task in tasks if task not in without):
            yield paper.sampling_of(figure).name, tasks[0] if len(tasks) == 1 else figure.task, tasks


def shared_documents(
    ours: OnPair, labels: tuple[str, str], sampling: str, tasks: Sequence[str], metric: str
) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """For each task the rows of both methods on the documents that both have; empty if they share none of a task.

    Speeds are of the runs that timed both, if there are such runs.
    """
    runs = {task: ours.runs_of_all(sampling, task, labels) if metric in SPEEDS else frozenset() for task in tasks}
    pairs = [tuple(ours.documents(sampling, task, label, metric, runs[task]) for label in labels) for task in tasks]
    shared = [mine.index.intersection(other.index) for mine, other in pairs]
    if any(index.empty for index in shared):
        return []
    return [(mine.loc[index], other.loc[index]) for (mine, other), index in zip(pairs, shared, strict=True)]


def _compare(
    ours: OnPair, claim: Claim, labels: tuple[str, str], sampling: str, name: str, tasks: tuple[str, ...]
) -> Compared | None:
    """Whether the first method's metric is larger; None if nothing compares.

    Only documents of both methods count. Of several tasks the unweighted average is compared.
    """
    pairs = shared_documents(ours, labels, sampling, tasks, claim.metric)
    figure = (difference(pairs) if claim.metric == "accuracy" else ratio(pairs, claim.metric)) if pairs else None
    if figure is None:
        return None
    verdict, text = _judged(figure)
    documents = min(len(mine) for mine, _ in pairs)
    if documents < FEWEST_DOCUMENTS:
        verdict = "too few documents"
    elif claim.metric in SPEEDS and (apart := pace_apart(ours, labels, sampling, tasks)) > PACE_APART:
        verdict, text = "void", f"{text}, where the baseline of one is {apart:.1f} × as fast as that of the other"
    elif not claim.same_rounds and (alike := decode_alike(ours, labels, sampling, tasks, claim.metric)):
        verdict, text = "void", f"{text}, alike: {alike}"
    elif not claim.loss and (broken := [label for label in labels if collapsed(ours, sampling, tasks, label)]):
        verdict, text = "void", f"{text}, where {broken[0]} collapsed"
    where = f"{name} (against {labels[1]})" if claim.rivals else name
    return Compared(verdict, ours.pair, sampling, f"{where} {text}", len(tasks), documents, figure.value)


def pace_apart(ours: OnPair, labels: Sequence[str], sampling: str, tasks: Sequence[str]) -> float:
    """How many times as fast the baseline of one method decoded as that of the other, at most over the tasks.

    Methods that no run timed together are compared by their speedups. Those of another runtime or machine say nothing.
    """
    apart = [task for task in tasks if not ours.runs_of_all(sampling, task, labels)]
    paces = [[ours.pace(sampling, task, label) for label in labels] for task in apart]
    return max((max(pair) / min(pair) for pair in paces if min(pair) > 0), default=1.0)


def decode_alike(ours: OnPair, labels: tuple[str, str], sampling: str, tasks: Sequence[str], metric: str) -> str | None:
    """In words, how few documents two methods decode differently; None if that is ALIKE of them or more.

    Two methods decode a document alike if they draft, accept, rescue and commit as many tokens in as many rounds and,
    where speed is compared, take as many forwards.
    """
    counted = ROUNDS + (FORWARDS if metric in SPEEDS else [])
    pairs = shared_documents(ours, labels, sampling, tasks, "accuracy")  # with those that were not timed
    differ = sum(
        int((mine[counted].div(mine.passes, axis=0) != other[counted].div(other.passes, axis=0)).any(axis=1).sum())
        for mine, other in pairs
    )
    documents = sum(len(mine) for mine, _ in pairs)
    return f"{differ} of {documents} documents differ" if differ < ALIKE * documents else None


def collapsed(ours: OnPair, sampling: str, tasks: Sequence[str], label: str) -> bool:
    """True if a method keeps less than COLLAPSED of its baseline's score, on the same documents of any of the tasks."""
    baseline = ours.measured.baselines.get(label)
    if baseline is None or baseline == label:
        return False
    for task in tasks:
        mine, base = (ours.documents(sampling, task, name, "accuracy").score.dropna() for name in (label, baseline))
        both = mine.index.intersection(base.index)
        if len(both) and mine.loc[both].mean() < COLLAPSED * base.loc[both].mean():
            return True
    return False


def difference(pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]]) -> stats.Difference:
    """How much higher the first accuracies are than the second; every task counts alike."""
    sizes = [len(mine) for mine, _ in pairs]
    weights = [sum(sizes) / (len(sizes) * size) for size in sizes]  # of a document of each task
    scores = [
        np.concatenate([weight * pair[i].score.to_numpy(float) for weight, pair in zip(weights, pairs, strict=True)])
        for i in (0, 1)
    ]
    return stats.difference(*scores)


def ratio(pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]], metric: str) -> stats.Interval | None:
    """How many times the second rates the first are; None if one of them is not known."""
    return stats.average_speedup(
        [stats.Paired(*(rows[name].to_numpy(float) for rows in pair for name in RATES[metric])) for pair in pairs]
    )


def _judged(figure: stats.Difference | stats.Interval) -> tuple[str, str]:
    """The verdict on a difference of accuracies or a ratio of rates, and the figure in words."""
    if isinstance(figure, stats.Difference):
        verdict = "undecided" if figure.p >= LEVEL else "holds" if figure.value > 0 else "fails"
        return verdict, f"{100 * figure.value:+.1f} points (p {p_text(figure.p)})"
    verdict = "holds" if figure.low > 1 else "fails" if figure.high < 1 else "undecided"
    return verdict, ratio_text(figure.value, figure.low, figure.high, " ×")
