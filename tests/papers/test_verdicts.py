"""Verdicts of results/tables/checks.md, computed again from the documents next to it, by formulas of their own.

Ratios of sums with the delta method's error instead of the jackknife's, exact binomial tests, scipy's Kendall τ.
Nothing of the package takes part.
"""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

TABLES = Path(__file__).parents[2] / "results" / "tables"
PUBLISHED = TABLES.parent / "published"
PRINTED = sorted(TABLES.glob("*-table*.md"))
CLOSE = 0.015  # of a printed bound: it has two digits, and the two formulas differ by less than one of them
WORDS, ALGEBRA, CODE, NEWS, INSTRUCTIONS, NEEDLES = (
    f"pocket_{name}" for name in ("gsm8k", "math500", "humaneval", "cnndm", "ifeval", "ruler")
)
FOUR = (WORDS, ALGEBRA, CODE, NEWS)
SPEED, DECODE, ACCEPTED = ("whole_tokens", "whole"), ("decoded", "decode"), ("A", "D")


@pytest.fixture(scope="module")
def documents() -> pd.DataFrame:
    return pd.read_parquet(TABLES / "documents.parquet")


@pytest.fixture(scope="module")
def checks() -> dict[tuple[str, str, str], dict[str, str]]:
    """The rows of checks.md by paper, table and claim."""
    lines = [line for line in (TABLES / "checks.md").read_text().splitlines() if line.startswith("|")]
    names, _, *rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {(row[0], row[1], row[2]): dict(zip(names, row, strict=True)) for row in rows}


def of_method(documents, method, task, sampling="greedy", pair="pocket", columns=ACCEPTED, other=None) -> pd.DataFrame:
    """A method's sums by document over its runs, its mean score, and times in those of its baseline's tokens.

    Times are of the runs that timed `other` too, if there are such.
    """
    place = documents[(documents.pair == pair) & (documents.sampling == sampling) & (documents.task == task)]
    mine = place[place.method == method]
    scores = mine.groupby("doc_id").score.mean()
    if columns != ACCEPTED:
        tokens, seconds = columns
        mine = mine[mine[seconds].notna()]
        both = mine.run.isin(place[(place.method == other) & place[seconds].notna()].run)
        mine = mine[both] if both.any() else mine
        base = place[(place.method == mine.baseline.iloc[0]) & place.run.isin(mine.run) & place[seconds].notna()]
        mine = mine.assign(**{seconds: mine[seconds] / (base[seconds].sum() / base[tokens].sum())})
    return mine.groupby("doc_id").sum(numeric_only=True).assign(score=scores)


def ratio(documents, higher, lower, task, columns=SPEED, sampling="greedy", pair="pocket"):
    """The ratio of two methods' rates, the error of its logarithm, and its degrees of freedom."""
    two = (higher, lower), (lower, higher)
    mine, other = (of_method(documents, m, task, sampling, pair, columns, with_) for m, with_ in two)
    both = mine.index.intersection(other.index)
    over, under = columns
    factors = [mine[over], other[under], other[over], mine[under]]
    shares = np.array([column.loc[both] / column.loc[both].sum() for column in factors])
    influence = shares[0] + shares[1] - shares[2] - shares[3]
    effective = min(1 / (share**2).sum() for share in shares)
    value = mine[over].loc[both].sum() * other[under].loc[both].sum()
    value /= other[over].loc[both].sum() * mine[under].loc[both].sum()
    return value, math.sqrt((influence**2).sum()), effective - 1, len(both)


def interval(*parts) -> tuple[float, float, float]:
    """Value and bounds of the mean of ratios, each as `ratio` gives it; Welch's degrees of freedom."""
    values, errors, freedom = (np.array(column, float) for column in list(zip(*parts, strict=True))[:3])
    value, spreads = values.mean(), (values * errors / len(values)) ** 2
    error = math.sqrt(spreads.sum()) / value
    degrees = spreads.sum() ** 2 / (spreads**2 / freedom).sum()
    wide = math.exp(stats.t.ppf(0.975, degrees) * error)
    return value, value / wide, value * wide


def judged(low: float, high: float) -> str:
    return "holds" if low > 1 else "fails" if high < 1 else "undecided"


def together(verdicts: list[str]) -> str:
    """One verdict of several, void ones too."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    kinds = [kind for kind in ("holds", "fails", "undecided", "void") if kind in verdicts]
    counts = [f"{kind} on {verdicts.count(kind)}" for kind in kinds]
    return ", ".join([f"{counts[0]} of {len(verdicts)}", *counts[1:]])


def differing(documents, first, second, task, counts="RDACS", sampling="greedy") -> tuple[int, int]:
    """On how many documents two methods took other rounds, and how many both decoded."""
    place = documents[(documents.pair == "pocket") & (documents.sampling == sampling) & (documents.task == task)]
    mine, other = (place[place.method == m].groupby("doc_id")[[*counts]].mean() for m in (first, second))
    both = mine.join(other, rsuffix=" of the other", how="inner")
    changed = [(both[c] - both[f"{c} of the other"]).abs() > 1e-9 for c in counts]
    return int(np.any(changed, axis=0).sum()), len(both)


def alike(documents, first, second, task, counts="RDACS") -> bool:
    """Fewer than one document in twenty."""
    differ, of = differing(documents, first, second, task, counts)
    return 20 * differ < of


def holm(ps: list[float]) -> list[float]:
    """Adjusted p values: the k-th smallest of n times n - k + 1, and never less than one before it."""
    order, adjusted, least = np.argsort(ps), [0.0] * len(ps), 0.0
    for rank, at in enumerate(order):
        least = max(least, min(1.0, (len(ps) - rank) * ps[at]))
        adjusted[at] = least
    return adjusted


def printed(detail: str) -> dict[str, tuple[float, float, float]]:
    """Ratios with their bounds by what stands before them, without the rival that they are against."""
    matches = re.findall(rf"([^:;,\[\]]+?){AGAINST} ([\d.]+) × \[([\d.]+), ([\d.]+)\]", detail)
    return {name.strip().removeprefix("| "): tuple(map(float, figures)) for name, *figures in matches}


AGAINST = r"(?: \(against [^)]*\))?"
FLY = ("fly[form=paper,entropy_threshold=0.05]", "fly")
RATIOS = {  # claim -> higher, lower or the rivals of which the best counts, tasks, columns
    ("csd", "1", "CSD is faster than speculative decoding"): ("csd", "sps", FOUR, SPEED),
    ("csd", "1", "CSD is faster than SWIFT"): ("csd", "swift", FOUR, SPEED),
    ("csd", "1", "CSD is faster than Lookahead"): ("csd", "lookahead", FOUR, SPEED),
    ("csd", "1", "A static gate beats speculative decoding"): ("lossy", "sps", FOUR, SPEED),
    ("csd", "2", "CSD is faster than Fly"): ("csd[gamma=15]", FLY, FOUR, SPEED),
    ("csd", "2", "CSD accepts more than Fly"): ("csd[gamma=15]", FLY, FOUR, ACCEPTED),
    ("csd", "2", "Reflective verification accepts more than CSD on average"): (
        "reflective[gamma=15]",
        "csd[gamma=15]",
        FOUR,
        ACCEPTED,
    ),
    ("csd", "4", "Calibration on the task itself accepts more than on other tasks, on average"): (
        "csd",
        "csd[calibration=others]",
        FOUR,
        ACCEPTED,
    ),
    ("csd", "3", "CSD accepts more than speculative decoding"): ("csd", "sps", (ALGEBRA, CODE), ACCEPTED),
    ("csd", "5", "CSD accepts more there, too"): ("csd", "sps", (INSTRUCTIONS, NEEDLES), ACCEPTED),
}


@pytest.mark.parametrize("claim", RATIOS, ids=" ".join)
def test_ratios(documents, checks, claim):
    higher, lower, tasks, columns = RATIOS[claim]
    rivals = lower if isinstance(lower, tuple) else (lower,)
    check, verdicts, sizes = checks[claim], [], []
    bounds = printed(check["detail"])
    assert len(bounds) == len(tasks) == int(check["data_sets"])
    for task in tasks:
        against = {rival: ratio(documents, higher, rival, task, columns) for rival in rivals}
        lower, parts = min(against.items(), key=lambda each: interval(each[1])[0])
        value, low, high = interval(parts)
        assert (value, low, high) == pytest.approx(bounds[task], abs=CLOSE, rel=CLOSE)
        counts = "RDACS" if columns == ACCEPTED else "RDACSFG"
        void = alike(documents, higher, lower, task, counts)
        assert void == bool(re.search(rf"{task}{AGAINST} [\d.]+ × \[[^]]*\], alike", check["detail"]))
        verdicts.append("void" if void else judged(low, high))
        sizes.append(parts[3])
    assert check["documents"] == str(min(sizes))
    assert check["verdict"] == together(verdicts)


def test_a_mixture_of_tasks(documents, checks):
    """SpecDec++ on what stands for Alpaca: the mean of four tasks, each at the length and threshold chosen for it."""
    check = checks["specdecpp", "1", "SpecDec++ is faster than a fixed length"]
    chosen = yaml.safe_load((PUBLISHED / "specdecpp.yaml").read_text())["methods"]["SpecDec++"]["by_pair"]["pocket"]
    names = set(documents.method)
    parts = {}
    for fixed, task in re.findall(r"(sps-eos\S*) on (\w+)", check["baseline"]):
        adaptive = f"specdecpp[threshold={chosen['by_task'][task]['threshold']}]"
        adaptive = adaptive if adaptive in names else "specdecpp"  # at its default
        parts[task] = ratio(documents, adaptive, fixed, task, DECODE, "T=1 top-k=50")
    alone = {task: interval(parts.pop(task)) for task in (WORDS, CODE)}
    bounds = printed(check["detail"]) | {"Alpaca": printed(check["detail"])["Alpaca (the average of 4 tasks)"]}
    for name, result in (alone | {"Alpaca": interval(*parts.values())}).items():
        assert result == pytest.approx(bounds[name], abs=CLOSE, rel=CLOSE)
    assert check["verdict"] == together([judged(*of[1:]) for of in (*alone.values(), interval(*parts.values()))])


@pytest.mark.parametrize(
    ("claim", "higher", "lower", "tasks"),
    [
        (
            ("csd", "1", "CSD raises its target's accuracy on competition mathematics"),
            "csd",
            "vanilla",
            [ALGEBRA],
        ),
        (("csd", "3", "The gate alone loses accuracy"), "csd", "csd-scg", [ALGEBRA, CODE]),
        (("csd", "3", "The memory alone loses accuracy"), "csd", "csd-ocm", [ALGEBRA, CODE]),
    ],
)
def test_differences_of_accuracy(documents, checks, claim, higher, lower, tasks):
    """McNemar's exact test: of the documents that one method solves and the other does not, a coin's chance."""
    check, verdicts = checks[claim], []
    for task in tasks:
        mine, other = (of_method(documents, m, task).score for m in (higher, lower))
        wins, losses = int((mine > other).sum()), int((mine < other).sum())
        p = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        points = 100 * (mine - other).mean()
        assert f"{task} {points:+.1f} points (p {f'{p:.3f}' if p >= 0.001 else '< 0.001'})" in check["detail"]
        void = alike(documents, higher, lower, task)
        verdicts.append("void" if void else "undecided" if p >= 0.05 else "holds" if points > 0 else "fails")
    assert check["verdict"] == together(verdicts)


VOID = {  # claim -> two methods that decode alike, and the tasks
    ("cospec", "7", "a lower threshold is faster"): ("cospec[threshold=0.4]", "cospec[threshold=0.8]", [WORDS]),
    ("cospec", "7", "and loses accuracy"): ("cospec[threshold=0.8]", "cospec[threshold=0.4]", [WORDS]),
    ("cospec", "8", "an arbitrator that looks back only is slower"): ("cospec", "cospec[mask=causal]", [WORDS]),
    ("cospec", "8", "and loses accuracy"): ("cospec", "cospec[mask=causal]", [WORDS]),
    ("csd", "3", "The memory alone is faster than CSD"): ("csd-ocm", "csd", [ALGEBRA, CODE]),
    ("csd", "3", "The memory alone loses accuracy"): ("csd", "csd-ocm", [ALGEBRA, CODE]),
}


@pytest.mark.parametrize("claim", VOID, ids=" ".join)
def test_claims_between_methods_that_decode_alike_are_void(documents, checks, claim):
    first, second, tasks = VOID[claim]
    counts = "RDACSFG" if "fast" in claim[2] or "slow" in claim[2] else "RDACS"
    for task in tasks:
        differ, of = differing(documents, first, second, task, counts)
        assert 20 * differ < of
        assert f"alike: {differ} of {of} documents differ" in checks[claim]["detail"]
    assert checks[claim]["verdict"] == "void"


ORDERS = {  # table of CSD -> its tasks, methods and whether variants are one policy where they decode alike
    "3": ({"MATH500": ALGEBRA, "HumanEval": CODE}, ["csd", "csd-ocm", "csd-scg", "sps"]),
    "2": (
        {"GSM8K": WORDS, "MATH500": ALGEBRA, "HumanEval": CODE, "CNN/DM": NEWS},
        ["csd[gamma=15]", "fly[form=paper,entropy_threshold=0.05]", "reflective[gamma=15]", "sps[gamma=15]"],
    ),
}
LABELS = {"SpecDecode": "sps", "SD w/ OCM": "csd-ocm", "SD w/ SCG": "csd-scg", "CSD": "csd"}
LABELS |= {"Fly": "fly[form=paper,entropy_threshold=0.05]", "Reflect Verification": "reflective"}


@pytest.mark.parametrize("number", ORDERS)
def test_an_order_by_acceptance(documents, checks, number):
    """Every two methods of each task: by the paper's figures, and by ours where Holm's rule tells them apart."""
    tasks, methods = ORDERS[number]
    check = checks["csd", number, "the order of methods by acceptance"]
    table = pd.read_csv(PUBLISHED / f"csd-table{number}.csv")
    names = {label: next(m for m in methods if m.partition("[gamma")[0] == ours) for label, ours in LABELS.items()
             if any(m.partition("[gamma")[0] == ours for m in methods)}  # fmt: skip
    agree, ps, sizes = [], [], []
    for label, task in tasks.items():
        of_paper = table[(table.task == label) & (table.metric == "AR")].set_index("method").value
        for one, other in itertools.combinations(names, 2):
            side = float(np.sign(of_paper[one] - of_paper[other]))
            value, error, freedom, _ = ratio(documents, names[one], names[other], task, ACCEPTED)
            same = alike(documents, names[one], names[other], task) or not error
            ps.append(1.0 if same else float(2 * stats.t.sf(abs(math.log(value)) / error, freedom)))
            agree.append(side * float(np.sign(math.log(value))))
        sizes.append(len(agree) - sum(sizes))
    lines = [p < 0.05 for p in holm(ps)]
    bounds = []
    for bound in (-1.0, None, 1.0):
        each = [one if known or bound is None else bound for one, known in zip(agree, lines, strict=True)]
        split = np.split(np.array(each), np.cumsum(sizes)[:-1])
        bounds.append(np.mean([part.mean() for part in split]))
    low, value, high = bounds
    assert check["detail"].startswith(
        f"Kendall's τ {value:.2f} [{low:.2f}, {high:.2f}], {sum(lines)} of {len(lines)} pairs of methods "
        "significantly different; "
    )
    assert check["detail"].endswith(", ".join(sorted(methods)))
    assert check["verdict"] == ("holds" if low >= 0.8 else "fails" if high < 0.8 else "undecided")


def test_the_number_of_uncorrected_tests_is_told(checks):
    """Intervals and p values that stand in the details of claims."""
    claims = {key: check for key, check in checks.items() if not key[2].startswith("the order of")}
    shown = {
        key: sum(
            len(re.findall(r" × \[| points \(p |: [\d.]+ \[[\d.]+, ", part))
            for part in check["detail"].split("; ")
            if not part.startswith("not judged: ")
        )
        for key, check in claims.items()
    }
    assert {key: int(check["tests"]) for key, check in claims.items()} == shown
    rules = " ".join((TABLES / "checks.md").read_text().split())
    assert f"The {sum(shown.values())} intervals and p values of claims are not corrected for their number" in rules


def test_tables_say_where_tokens_a_second_are_of_several_runs():
    said = {path.stem: "- where a row names several runs, its tokens/s" in path.read_text() for path in PRINTED}
    several = {path.stem: bool(re.search(r"tokens/s \|.*-\d{6}, \S+ \|$", path.read_text(), re.M)) for path in PRINTED}
    assert said == several and said["csd-table1"] and not said["cospec-table1"]
