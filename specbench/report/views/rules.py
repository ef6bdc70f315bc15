"""The accepted tokens of each rule for the same drafts."""

from specbench.report.finding import Finding, Sheet, estimate
from specbench.studies.rules import ALPHA, DELTA, EPSILON, LENIENCE, Compared

NAMES = {
    "token": "token by token",
    "block": "as a block",
    "typical": f"typical, ε {EPSILON}, δ {DELTA}",
    "lenience": f"lenience {LENIENCE}",
    "cascade": f"cascade, opt, α {ALPHA}",
    "cascade-chow": f"cascade, chow, α {ALPHA}",
    "cascade-diff": f"cascade, diff, α {ALPHA}",
}


def view(figures: Compared) -> Finding:
    rows = []
    for row in figures.figures.to_dict("records"):
        over = {"value": row["over"], "low": row["over_low"], "high": row["over_high"]}
        more = "" if row["rule"] == "token" else estimate(over, "+.3f")
        rows.append([NAMES[row["rule"]], "yes" if row["lossless"] else "no", estimate(row), more])
    methods = ", ".join(figures.methods)
    return Finding(
        "rules",
        f"ACCEPTED TOKENS OF A DRAFT BY RULE ({figures.sampling})\n"
        f"{figures.drafts} drafts of {figures.documents} documents, of {methods}",
        [Sheet(["rule", "lossless", "accepted", "over token by token"], rows, align="llrr")],
        [],
        [
            "accepted: the expected number, for the same drafts after the same texts, without the bonus token",
            "[ ]: 95 %, bootstrap over documents",
        ],
        vars(figures) | {"methods": methods},
    )
