"""What an arbitrator's decisions owe to the target's tokens: by change, and by task where there are several."""

from specbench.report.finding import Finding, Sheet
from specbench_extras.arbitrator.analysis import CHANGES, TOGETHER, Dependence
from specbench_extras.counterfactual.view import percent

HARDLY = 0.1  # of the decisions, with the whole interval


def view(figures: Dependence) -> Finding:
    return Finding(
        "arbitrator",
        f"DECISIONS of {figures.method} with other target tokens ({figures.pair}, {figures.sampling})",
        [_sheet(figures)],
        [sentence(figures)],
        list(notes(figures)),
        vars(figures) | {"sentence": sentence(figures)},
    )


def _sheet(figures: Dependence) -> Sheet:
    rows = [
        [row["task"], row["change"], str(row["decisions"]), str(row["changed"]), percent(row, "share")]
        for row in figures.changes.to_dict("records")
    ]
    return Sheet(["task", "change", "decisions", "changed", "share [95 %]"], rows, align="llrrr")


def sentence(figures: Dependence) -> str:
    """What the table says of the change that takes most from the arbitrator."""
    last = figures.changes[figures.changes.task == figures.changes.task.iloc[-1]].set_index("change")
    shares = f"{figures.method} decides {100 * last.share['random']:.1f} % of mismatches differently if the target's "
    shares += f"tokens are replaced, and {100 * last.share['removed']:.1f} % without them"
    most = last.share_high[["random", "copied", "removed"]].max()
    return f"{shares}: {'it hardly depends on them' if most < HARDLY else 'it partly depends on them'}."


def notes(figures: Dependence) -> list[str]:
    lines = [f"{name}: {what}" for name, what in CHANGES.items()]
    lines.append(
        f"{figures.decisions} decisions in {figures.documents} texts, of which {100 * figures.kept:.0f} % keep the "
        f"draft's token; seed {figures.seed}; [ ]: 95 %, Wilson's with as many draws as texts"
    )
    if TOGETHER in set(figures.changes.task):
        lines.append(f"{TOGETHER}: the decisions of all tasks, each counting once")
    if figures.lost:
        lines.append(f"left out: {figures.lost} decisions that came out otherwise than recorded (near-ties)")
    return lines
