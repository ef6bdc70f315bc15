"""Arbitration against counterfactual branches: by kind of state, and by task where there are several."""

import math
from collections.abc import Iterator
from typing import Any

from specbench.report.finding import Finding, Sheet, bounds, number
from specbench_extras.counterfactual.analysis import ALL, DRAFT, METRICS, RIGHT, TARGET, WRONG, Counterfactual

HEADINGS = {"share": "share", "not_worse": "not worse", "kept": "kept", "agreement": "agreement"}


def view(figures: Counterfactual) -> Finding:
    asymmetry = {name: None if math.isnan(value) else value for name, value in vars(figures.asymmetry).items()}
    lines = sentences(figures)
    facts = vars(figures) | {"asymmetry": asymmetry, "sentences": " ".join(lines)}
    return Finding(
        "counterfactual",
        f"BRANCHES of {figures.method} at mismatches ({figures.pair}, {figures.sampling})",
        _sheets(figures),
        lines,
        [*notes(figures)],
        facts | {"graded": ", ".join(figures.graded), "unchecked": ", ".join(figures.unchecked)},
    )


def _sheets(figures: Counterfactual) -> list[Sheet]:
    columns = list(HEADINGS.values())
    kinds = [[row["kind"].lower(), str(row["states"]), *_shares(row)] for row in figures.kinds.to_dict("records")]
    sheets = [Sheet(["states", "n", *columns], kinds)]
    if len(figures.tasks) > 1:
        rows = [[row["task"], str(row["states"]), *_shares(row)[1:]] for row in figures.tasks.to_dict("records")]
        sheets.append(Sheet(["task", "n", *columns[1:]], rows))
    return sheets


def _shares(row: dict[str, Any]) -> list[str]:
    return [percent(row, name) for name in METRICS]


def percent(row: dict[str, Any], name: str) -> str:
    """A share with its interval; - where there are no states."""
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    return number(100 * value, ".1f") + ("" if low == high == value else bounds(100 * low, 100 * high, ".0f"))


def sentences(figures: Counterfactual) -> list[str]:
    """What the tables say."""
    kinds = figures.kinds.set_index("kind")
    every = kinds.loc[ALL]
    drafts, targets = every.not_worse, 1 - kinds.share[DRAFT]
    lines = [
        f"{figures.method} agrees with the better branch, or loses nothing, in {100 * every.agreement:.1f} % of the "
        f"states; the draft's branch throughout would in {100 * drafts:.1f} %, the target's in {100 * targets:.1f} %."
    ]
    if not (kinds.states[DRAFT] or kinds.states[TARGET]):
        return [*lines, "No state has a better branch: at these mismatches nothing was to be won or lost."]
    for kind, other in ((DRAFT, "draft"), (TARGET, "target")):
        if not kinds.states[kind]:
            return [*lines, f"No state has a better {other} branch, so how far apart the kinds are is not known."]
    asymmetry = figures.asymmetry
    kept = f"Draft tokens are kept in {100 * kinds.kept[DRAFT]:.1f} % of the states where they are better, and in "
    kept += f"{100 * kinds.kept[TARGET]:.1f} % where the target's are: {100 * asymmetry.value:+.1f} points"
    if asymmetry.low != asymmetry.low:
        return [*lines, f"{kept}, of too few documents for an interval."]
    verdict = "the arbiter tells them apart" if asymmetry.low > 0 else "that may be chance"
    if asymmetry.high < 0:
        verdict = "the arbiter keeps the wrong ones"
    return [*lines, f"{kept}{bounds(100 * asymmetry.low, 100 * asymmetry.high, '+.1f')}: {verdict}."]


def notes(figures: Counterfactual) -> Iterator[str]:
    yield (
        f"{figures.states} states of {figures.documents} documents, drawn from {figures.reached} with seed "
        f"{figures.seed}; shares in percent; [ ]: 95 %, bootstrap over documents"
    )
    yield (
        "a branch forces one token, then the same method goes on to the end of the text; not worse: the draft's branch "
        "scores no less; kept: the run kept the draft's token; agreement: its choice scores no less than the other"
    )
    if figures.repeatable:
        yield f"in {figures.same} of {figures.states} states the branch that the run took is the run's own text again"
    else:
        yield "this arbiter decides at random, so the branch that the run took may not end as its text did"
    if figures.graded:
        both = f"{RIGHT} / {WRONG}".lower()
        yield f"graded scores, not right or wrong ({', '.join(figures.graded)}): {both} are equal scores above / of 0"
    if figures.unchecked:
        yield f"left out, since a judge model scores them: {', '.join(figures.unchecked)}"
    if figures.lost:
        lost = f"{figures.lost}, whose rounds came out otherwise than recorded (near-ties)"
        yield f"not met again, so in no figure: {lost}"
