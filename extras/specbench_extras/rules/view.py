"""The accepted tokens of each rule for the same drafts."""

from typing import Any

from specbench.report.finding import Finding, Sheet, estimate
from specbench_extras.rules.study import ALPHA, LENIENCE, Compared
from specbench_extras.rules.tree_rules import DELTA, EPSILON

NAMES = {
    "token": "token by token",
    "block": "as a block",
    "typical": f"typical, ε {EPSILON}, δ {DELTA}",
    "lenience": f"lenience {LENIENCE}",
    "cascade": f"cascade, opt, α {ALPHA}",
    "cascade-chow": f"cascade, chow, α {ALPHA}",
    "cascade-diff": f"cascade, diff, α {ALPHA}",
    "recursive": "sibling by sibling",
    "kseq": "K-SEQ",
    "traversal": "traversal",
}


def view(figures: Compared) -> Finding:
    sheets = []
    if len(figures.figures):
        rows = [cells(row) for row in figures.figures.to_dict("records")]
        sheets.append(Sheet(["rule", "lossless", "accepted", "over token by token"], rows, align="llrr"))
    for method in dict.fromkeys(figures.trees.get("method", ())):
        mine = figures.trees[figures.trees.method == method]
        title = f"Trees of {method}, {mine.drafts.iloc[0]} drafts"
        rows = [cells(row) for row in mine.to_dict("records")]
        sheets.append(Sheet(["rule", "lossless", "accepted", "over sibling by sibling"], rows, title, align="llrr"))
    methods = ", ".join(figures.methods)
    return Finding(
        "rules",
        f"ACCEPTED TOKENS OF A DRAFT BY RULE ({figures.sampling})\n"
        f"{figures.drafts} drafts of {figures.documents} documents, of {methods}",
        sheets,
        [],
        [
            "accepted: the expected number, for the same drafts after the same texts, without the bonus token",
            "[ ]: 95 %, bootstrap over documents",
        ],
        vars(figures) | {"methods": methods},
    )


def cells(row: dict[str, Any]) -> list[str]:
    over = {"value": row["over"], "low": row["over_low"], "high": row["over_high"]}
    more = "" if row["rule"] in ("token", "recursive") else estimate(over, "+.3f")
    return [NAMES[row["rule"]], "yes" if row["lossless"] else "no", estimate(row), more]
