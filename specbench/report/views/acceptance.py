"""Reliability of predicted acceptance: how good each task's predictions are, then the bins of all tasks together."""

from collections.abc import Iterator

import pandas as pd

from specbench.analysis.acceptance import Acceptance
from specbench.report.finding import Finding, Sheet, estimate

HEADINGS = {"ece": "ECE", "brier": "Brier", "auroc": "AUROC", "auroc_draft": "AUROC of 1−q(d)"}
HEADINGS |= {"auroc_difference": "difference", "stop_ece": "ECE of drafts"}


def view(figures: Acceptance) -> Finding:
    last = figures.tasks.iloc[-1]
    known = [name for name in ("auroc_draft", "auroc_difference") if (figures.figures.figure == name).any()]
    sheets = [_overview(figures), _errors(figures, ["ece", "brier", "stop_ece"]), _errors(figures, ["auroc", *known])]
    for title, bins in (("reliability, tokens", figures.bins), ("reliability, drafts", figures.stops)):
        of_all = bins[bins.task == last.task]
        if len(of_all):
            sheets.append(_bins(f"{title} ({last.task})", of_all))
    return Finding(
        "acceptance",
        f"PREDICTIONS OF {figures.method}: {last.tokens} tested draft tokens of {last.documents} documents",
        sheets,
        notes=[*notes(figures)],
        facts=vars(figures) | {"selected": figures.selected},
    )


def notes(figures: Acceptance) -> Iterator[str]:
    yield "ECE: mean |prediction − share accepted| over 10 equal bins; [ ]: 95 %, by bootstrap over documents"
    yield "AUROC: how often a rejected token has the lower prediction than an accepted one"
    if figures.unsure:
        yield f"q(d) was not recorded for {figures.unsure} tokens (greedy drafts have none): no AUROC of 1−q(d)"
    else:
        yield "AUROC of 1−q(d): by the draft's own confidence, on the same tokens"
    yield "drafts: the predicted chance that all scored tokens of a draft are accepted, and the share where they were"
    if figures.selected is None:
        yield "the run's settings do not bound drafts, so it is not known if predictions kept tokens out of them"
    elif figures.selected:
        yield (
            f"drafts of {figures.shortest} to {figures.longest} tokens: what lies beyond a stop was never seen, so "
            "these figures are of the tokens that the predictions let through; shortest = longest sees all"
        )
    else:
        yield f"all drafts may have {figures.longest} tokens, whatever was predicted: no prediction prevented a test"
    if figures.rescued:
        yield f"{figures.rescued} rescued tokens count as accepted"
    if figures.unscored:
        yield f"{figures.unscored} tested tokens have no prediction (the last one of a draft) and are left out"
    if figures.unseen:
        yield f"{figures.unseen} drafts are left out: the text ended before all their tokens were tested"


def _overview(figures: Acceptance) -> Sheet:
    rows = []
    for row in figures.tasks.itertuples():
        shares = f"{row.accepted:.1%}", f"{row.prediction:.1%}"
        rows.append([row.task, str(row.documents), str(row.tokens), *shares, str(row.drafts)])
    return Sheet(["task", "documents", "tokens", "accepted", "predicted", "drafts"], rows)


def _errors(figures: Acceptance, names: list[str]) -> Sheet:
    by_name = figures.figures.set_index(["task", "figure"])
    rows = [[task, *(estimate(by_name.loc[(task, name)]) for name in names)] for task in figures.tasks.task]
    return Sheet(["task", *(HEADINGS[name] for name in names)], rows)


def _bins(title: str, bins: pd.DataFrame) -> Sheet:
    rows = []
    for row in bins.itertuples():
        share = estimate({"value": row.accepted, "low": row.accepted_low, "high": row.accepted_high})
        rows.append([f"{row.low:.1f}", f"{row.high:.1f}", str(row.count), f"{row.prediction:.3f}", share])
    return Sheet(["from", "to", "count", "predicted", "accepted"], rows, title, align="rrrrr")
