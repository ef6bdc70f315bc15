"""Rejections and rescues: the long tail of rejected pairs, then the rescued tokens by kind with examples."""

from collections.abc import Iterator

from rich.text import Text

from specbench.analysis.rejections import FREQUENT, SPREAD, Rejections, Rescues
from specbench.analysis.trace import ratio_text
from specbench.report.finding import Finding, Sheet, number
from specbench.report.views.trace import visible

SHARES = (0.01, 0.05, FREQUENT, 0.5)
BEFORE = 34  # characters of the text before an example
PAPER = "CSD's paper (arXiv 2604.13634; Llama-3 70B with 1B)"


def view(rejected: Rejections, rescued: Rescues) -> list[Finding]:
    share = rejected.covered(FREQUENT)
    frequent = {"frequent_pairs": FREQUENT, "frequent_share": share if share == share else None}
    tail = Finding(
        "rejections",
        f"REJECTIONS OF {rejected.method}: {rejected.total} of {_count(len(rejected.pairs), 'pair')} (draft token, "
        "target token)",
        [_top(rejected)] if rejected.total else [],
        [*_shares(rejected)],
        [*_rejection_notes(rejected)],
        vars(rejected) | frequent,
    )
    if not rescued.total:
        return [tail, Finding("rescues", f"{rescued.method} rescued no token.", facts=vars(rescued))]
    title = f"RESCUED BY {rescued.method}: {_count(rescued.total, 'token')}"
    sheets, notes = [_kinds(rescued), _examples(rescued)], [*_rescue_notes(rescued)]
    return [tail, Finding("rescues", title, sheets, notes=notes, facts=vars(rescued))]


def _shares(rejected: Rejections) -> Iterator[str]:
    if rejected.total:
        shares = ", ".join(f"{share:.0%} of pairs {rejected.covered(share):.1%}" for share in SHARES)
        yield f"share of them that the most frequent pairs make up: {shares}"
        once = int((rejected.pairs["count"] == 1).sum())
        yield f"pairs that occur once: {once} ({once / len(rejected.pairs):.1%})"


def _top(rejected: Rejections) -> Sheet:
    prefixes = {task.rpartition("_")[0] for tasks in rejected.top.tasks for task in tasks}
    shared = f"{prefixes.pop()}_" if len(prefixes) == 1 else ""
    rows = []
    for row in rejected.top.to_dict("records"):
        tasks = ", ".join(f"{task.removeprefix(shared)} {count}" for task, count in row["tasks"].items())
        ratios = [ratio_text(row[name]) for name in SPREAD]
        rows.append([_token(row["draft"]), _token(row["target"]), str(row["count"]), *ratios, tasks])
    title = "the most frequent pairs, and their ratios p(draft)/p(target)"
    headings = ["draft", "target", "count", *SPREAD, "tasks"]
    return Sheet(headings, rows, title, align="llr" + "r" * len(SPREAD) + "l")


def _kinds(rescued: Rescues) -> Sheet:
    outcomes = ["stays right", "goes wrong", "share wrong"] if rescued.baseline else []
    rows = []
    for row in rescued.kinds[rescued.kinds["count"] > 0].to_dict("records"):
        cells = [row["kind"], str(row["count"]), f"{row['share']:.1%}"]
        if outcomes:
            cells += [f"{row[name]} ({row[f'{name}_documents']})" for name in ("right", "wrong")]
            cells.append(number(row["wrong_share"], ".1%"))
        rows.append(cells)
    title = "by kind; in ( ): documents" if outcomes else "by kind"
    return Sheet(["kind", "tokens", "share", *outcomes], rows, title)


def _examples(rescued: Rescues) -> Sheet:
    rows: list[list[str | Text]] = []
    last = ""
    for row in rescued.examples.to_dict("records"):
        if row["kind"] != last:
            last = row["kind"]
            rows.append([Text(last, "bold", justify="left")])
        before = visible(row["before"])
        before = f"…{before[-BEFORE:]}" if len(before) > BEFORE else before
        rows.append([before, _token(row["draft"]), _token(row["target"]), ratio_text(row["ratio"]), str(row["count"])])
    headings = ["text before", "drafted", "target's", "ratio", "count"]
    return Sheet(headings, rows, "examples of frequent pairs", align="rllrr")


def _rejection_notes(rejected: Rejections) -> Iterator[str]:
    if rejected.total:
        yield "ratios: of the target's probabilities at temperature 1; q1, q3: quartiles; ␣ is a space"
        yield f"the shares depend on how many rejections there are; {PAPER}: {FREQUENT:.0%} of pairs 69.0%"
    if rejected.rescued:
        yield (
            f"{rejected.method} sees fewer rejections than a lossless method: "
            f"{_count(rejected.rescued, 'mismatch', 'es')} that it rescued are not among them"
        )
    if rejected.unpaired:
        yield (
            f"{_count(rejected.unpaired, 'more rejected token')} had no pair: sampling refused what the target itself "
            "preferred"
        )


def _rescue_notes(rescued: Rescues) -> Iterator[str]:
    if rescued.baseline:
        left = f"; {rescued.unjudged} more tokens are in others" if rescued.unjudged else ""
        yield f"stays right, goes wrong: by {rescued.method}, in documents that {rescued.baseline} gets right{left}"
        yield "a rescue in a text that goes wrong need not be what made it wrong"
    else:
        yield "which rescues hurt is not known: that needs scores, and a baseline next to the method"
    yield "word for word: whether two words mean the same is not judged; other: parts of words and all the rest"
    yield f"{PAPER}, of 100: formatting 45, punctuation and spacing 20, synonyms 20, connectives 15"


def _token(text: str) -> str:
    return visible(text).replace(" ", "␣")


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"
