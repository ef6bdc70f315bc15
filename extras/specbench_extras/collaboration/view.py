"""CoS's formulas next to measurement: acceptance by proposer, then speedups next to what is foretold."""

from collections.abc import Iterator

import pandas as pd
from rich.text import Text

from specbench.report.finding import Finding, Sheet, bounds, number
from specbench_extras.collaboration.analysis import ALL, ROUNDING, STANDARD, Collaboration


def view(figures: Collaboration) -> Finding:
    return Finding(
        "collaboration",
        sheets=[_acceptance(figures), _speed(figures)],
        sentences=[*sentences(figures)],
        notes=[*notes(figures)],
        facts=vars(figures),
    )


def sentences(figures: Collaboration) -> Iterator[str]:
    """What the figures say of Theorem 3.2, of Corollary 3.7, and of the predictions."""
    bounded = figures.acceptance[(figures.acceptance.proposer != ALL) & figures.acceptance.bound.notna()]
    if positions := int(bounded.positions.sum()):
        below = int(bounded.below.sum())
        holds = "holds at all" if not below else f"FAILS at {below} of"
        yield f"Theorem 3.2 (overlap at least the proposer's weight) {holds} {positions} positions."
    decided = figures.speed[figures.speed.corollary.notna()]
    for (method, verdict), rows in decided.groupby(["method", "corollary"], sort=False):
        is_ = "is undecided" if verdict == "undecided" else verdict
        yield f"Corollary 3.7 (all γ = 1: never slower) {is_} for {method} on {', '.join(rows.task)}."
    for name, source in (("predicted", "the theorems predict"), ("chain", "our chain predicts")):
        ratios = pd.to_numeric(figures.speed[f"over_{name}"]).dropna()
        if len(ratios):
            yield f"Measured speedups are {_range(ratios)} times what {source}."


def notes(figures: Collaboration) -> Iterator[str]:
    if figures.greedy:
        yield "greedy: α is the share of accepted tokens, since there are no distributions to overlap"
    else:
        yield "α: mean of Σ min(q, r) over judged tokens; accepted: the share accepted, which varies by chance"
    if figures.acceptance.bound.notna().any() and not figures.greedy:
        yield f"lowest: of all scored positions; below: those under the bound by more than {ROUNDING:g} (float32)"
    if figures.speed.theorem.notna().any():
        yield "Thm: 3.1 for cos-naive, 3.6 for cos, by α of all tokens; chain: both models' cycles, each with its own α"
        yield "neither counts work outside forwards or the cost of wider ones, or knows that acceptances come in runs"
    sources = dict.fromkeys(figures.speed.c_of.dropna())
    if sources:
        yield f"c: seconds per forward of the proposer over the other model's, from {', '.join(sources)}"
    if figures.speed.baseline.isna().any():
        yield f"- for a speedup: the method's baseline in this run is not {STANDARD}"
    if figures.speed.theorem.isna().any():
        yield "the paper has no formula for cos-sd, and none for more than two models"


def _range(ratios: pd.Series) -> str:
    low, high = f"{ratios.min():.2f}", f"{ratios.max():.2f}"
    return low if low == high else f"{low} to {high}"


def _acceptance(figures: Collaboration) -> Sheet:
    accepted = [] if figures.greedy else ["accepted"]
    bounded = ["lowest", "bound", "below"] if figures.acceptance.lowest.notna().any() else []
    digits = {"alpha": ".3f", "accepted": ".3f", "lowest": ".3f", "bound": ".3f", "below": ".0f"}
    rows: list[list[str | Text]] = []
    for task, of_task in figures.acceptance.groupby("task", sort=False):
        rows.append([Text(str(task), "bold")])
        for method, of_method in of_task.groupby("method", sort=False):
            proposers = of_method[-1:] if len(of_method) == 2 else of_method
            for i, row in enumerate(proposers.to_dict("records")):
                cells = [number(row[name], digits[name]) for name in ("alpha", *accepted, *bounded)]
                rows.append(["" if i else str(method), row["proposer"], str(row["tokens"]), *cells])
    headings = ["method", "proposer", "tokens", "α", *accepted, *bounded]
    return Sheet(headings, rows, "ACCEPTANCE of proposed tokens", align="ll" + "r" * (len(headings) - 2))


def _speed(figures: Collaboration) -> Sheet:
    foretold = bool(figures.speed.chain.notna().any())
    columns = ["γ", "c", "Thm", "chain", "measured", "/Thm", "/chain"] if foretold else ["γ", "measured"]
    rows: list[list[str | Text]] = []
    for task, of_task in figures.speed.groupby("task", sort=False):
        rows.append([Text(str(task), "bold")])
        for row in of_task.itertuples():
            cells = {"γ": row.gamma, "c": number(row.c), "Thm": number(row.predicted), "chain": number(row.chain)}
            cells |= {"measured": number(row.speedup) + bounds(row.low, row.high)}
            cells |= {"/Thm": number(row.over_predicted), "/chain": number(row.over_chain)}
            rows.append([row.method, *(cells[name] for name in columns)])
    return Sheet(["method", *columns], rows, f"SPEEDUP over {STANDARD}, predicted and measured")
