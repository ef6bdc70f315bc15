"""Two families of methods by verification and discard rate: both curves and their comparison, task by task."""

from collections.abc import Iterator

from specbench.analysis.frontier import LEAST, Frontier, sentence
from specbench.report.finding import Finding, Sheet, estimate, number


def view(figures: Frontier) -> Finding:
    sheets = [sheet for task in figures.documents for sheet in (_curve(figures, task), _comparison(figures, task))]
    sentences = {task: sentence(figures, task) for task in figures.documents}
    families = {"method": vars(figures.method), "against": vars(figures.against)}
    return Finding(
        "frontier",
        sheets=[*sheets, _gains(figures)] if len(figures.gains) else sheets,
        sentences=[*sentences.values()],
        notes=[*notes(figures)],
        facts=vars(figures) | families | {"sentences": sentences},
    )


def notes(figures: Frontier) -> Iterator[str]:
    method, other = figures.method.name, figures.against.name
    yield (
        f"difference: discard rate of {method} less that of {other} at the same verification rate, interpolated "
        f"between the points of {other}; [ ]: 95 %, paired bootstrap over documents"
    )
    yield (
        "undecided: the interval contains 0, or under 95 % of the resamples (share in brackets) compare; not "
        f"comparable: no variant of {other} verifies as much or as little"
    )
    if figures.oracle is None:
        yield "this run has no oracle, so the share of its gain that a policy reaches is not known"
    else:
        chosen = "as requested" if figures.best_given else f"the fastest {other}, chosen on these very documents"
        yield f"gains are counted from {figures.best} ({chosen}); 1 is {figures.oracle}, time per token"


def _curve(figures: Frontier, task: str) -> Sheet:
    rows = [
        [row.method, str(row.setting), f"{row.verification:.3f}", f"{row.discard:.3f}"]
        for row in figures.points[figures.points.task == task].itertuples()
    ]
    title = f"{task}: {figures.documents[task]} documents that all of these methods decoded"
    return Sheet(["method", "setting", "verify", "discard"], rows, title)


def _comparison(figures: Frontier, task: str) -> Sheet:
    rows = []
    for row in figures.compared[figures.compared.task == task].to_dict("records"):
        cells = [number(row[name], ".3f") for name in ("verification", "discard", "other")]
        rare = row["verdict"] == "undecided" and row["comparable"] < LEAST
        verdict = row["verdict"] + (f" ({row['comparable']:.0%})" if rare else "")
        difference = estimate(row | {"value": row["difference"]}, "+.3f")
        rows.append([str(figures.method.values[row["method"]]), *cells, difference, verdict])
    headings = [figures.method.setting or "setting", "verify", "discard", figures.against.name, "difference", "verdict"]
    return Sheet(headings, rows, align="lrrrrl")


def _gains(figures: Frontier) -> Sheet:
    rows = [
        [row["task"], str(figures.method.values[row["method"]]), estimate(row | {"value": row["share"]})]
        for row in figures.gains.to_dict("records")
    ]
    headings = ["task", figures.method.setting or "setting", "share"]
    return Sheet(headings, rows, f"share of {figures.oracle}'s gain over {figures.best}", align="llr")
