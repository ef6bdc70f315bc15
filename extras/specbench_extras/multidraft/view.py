"""Acceptance of several drafts of a token: on all tasks, by task, and next to what the run itself measured."""

from collections.abc import Iterator

import pandas as pd

from specbench.report.finding import Finding, Sheet, estimate, number
from specbench_extras.multidraft.study import ALL, MultiDraft

RULES = {"single": "one draft", "recursive": "recursive rejection", "optimal": "the best rule"}
REPLACEMENT = {True: "with", False: "without"}  # of one draft it means nothing


def view(figures: MultiDraft) -> Finding:
    last = figures.figures.task.iloc[-1]
    methods = ", ".join(figures.methods)
    texts = f"{figures.positions} positions of {figures.documents} documents, texts of {methods}"
    sheets = [_total(figures.figures[figures.figures.task == last])]
    sheets += [_by_task(figures.figures)] if last == ALL else []
    sheets += [_measured(figures.measured)] if len(figures.measured) else []
    return Finding(
        "multi-draft",
        f"ACCEPTANCE OF SEVERAL DRAFTS ({last}; {figures.sampling})\n{texts}",
        sheets,
        [sentence(figures)],
        [*notes(figures)],
        vars(figures) | {"methods": methods},
    )


def sentence(figures: MultiDraft) -> str:
    """Whether the figures are in their order at every position."""
    if figures.outside:
        wrong = f"{figures.outside} figures of recursive rejection are below one draft's or above the best rule's"
        return f"WRONG: {wrong}."
    return "At every position recursive rejection is between one draft and the best rule."


def notes(figures: MultiDraft) -> Iterator[str]:
    yield "acceptance: the chance that the token that follows, as the target draws it, is one of the drafts"
    yield "the best rule: the optimal transport of arXiv 2502.18779; no lossless rule accepts more of the same drafts"
    yield "[ ]: 95 %, bootstrap over documents; the first token of a text is the prefill's, and no draft precedes it"
    if (most := figures.figures.left_out.max()) > 0:
        yield f"three drafts without replacement: a lower bound of recursive rejection, at most {most:.1g} too low"
    if len(figures.measured):
        yield "measured: rounds whose first level was accepted, and what is foretold for the same positions"
        if figures.measured.foretold.isna().any():
            yield "- no formula: more drafts than are known here, or a draft with another output layer"


def _total(figures: pd.DataFrame) -> Sheet:
    rows = []
    single = figures["value"].iloc[0]
    for row in figures.to_dict("records"):
        over = "" if row["rule"] == "single" else f"{row['value'] - single:+.3f}"
        kind = REPLACEMENT.get(row["replacement"], ""), RULES[row["rule"]]
        rows.append([str(row["drafts"]), *kind, estimate(row), over])
    return Sheet(["drafts", "replacement", "rule", "acceptance", "over one"], rows, align="rllrr")


def _by_task(figures: pd.DataFrame) -> Sheet:
    without = figures[(figures.replacement != True) & (figures.task != ALL)]  # noqa: E712
    headings = ["task", "positions"]
    for row in without[without.task == without.task.iloc[0]].itertuples():
        names = {"single": "one", "recursive": f"{row.drafts} recursive", "optimal": f"{row.drafts} best"}
        headings.append(names[row.rule])
    rows = [
        [str(task), str(of_task.positions.iloc[0]), *(f"{value:.3f}" for value in of_task["value"])]
        for task, of_task in without.groupby("task", sort=False)
    ]
    return Sheet(headings, rows, "by task, drawn without replacement")


def _measured(measured: pd.DataFrame) -> Sheet:
    rows = []
    for row in measured.to_dict("records"):
        drafts = number(row["drafts"], ".0f") if row["foretold"] == row["foretold"] else "-"
        counts = drafts, str(row["rounds"]), f"{row['accepted']:.3f}", number(row["foretold"], ".3f")
        rows.append([row["method"], *counts, estimate(row, "+.3f")])
    headings = ["method", "drafts", "rounds", "accepted", "foretold", "difference"]
    return Sheet(headings, rows, "measured in this run")
