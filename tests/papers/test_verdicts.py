"""Verdicts of results/tables/checks.md, computed again from the documents beside it, by formulas of their own.

Ratios of sums with the delta method's error instead of the jackknife's, exact binomial tests, scipy's Kendall τ.
Nothing of the package takes part.
"""

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


def of_method(documents, method, task, sampling="greedy", pair="pocket", columns=ACCEPTED) -> pd.DataFrame:
    """A method's sums by document over its runs, its mean score, and times in those of its baseline's tokens."""
    place = documents[(documents.pair == pair) & (documents.sampling == sampling) & (documents.task == task)]
    mine = place[place.method == method]
    scores = mine.groupby("doc_id").score.mean()
    if columns != ACCEPTED:
        tokens, seconds = columns
        mine = mine[mine[seconds].notna()]
        base = place[(place.method == mine.baseline.iloc[0]) & place.run.isin(mine.run) & place[seconds].notna()]
        mine = mine.assign(**{seconds: mine[seconds] / (base[seconds].sum() / base[tokens].sum())})
    return mine.groupby("doc_id").sum(numeric_only=True).assign(score=scores)


def ratio(documents, higher, lower, task, columns=SPEED, sampling="greedy", pair="pocket"):
    """The ratio of two methods' rates, the error of its logarithm, and its degrees of freedom."""
    mine, other = (of_method(documents, m, task, sampling, pair, columns) for m in (higher, lower))
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


def together(verdicts: set[str]) -> str:
    return verdicts.pop() if len(verdicts) == 1 else "mixed"


def printed(detail: str) -> dict[str, tuple[float, float, float]]:
    """Ratios with their bounds by what stands before them."""
    found = re.findall(r"([^:;,\[\]]+?) ([\d.]+) × \[([\d.]+), ([\d.]+)\]", detail)
    return {name.strip().removeprefix("| "): tuple(map(float, figures)) for name, *figures in found}


RATIOS = {  # claim -> higher, lower, tasks, columns
    ("csd", "1", "CSD is faster than speculative decoding"): ("csd", "sps", FOUR, SPEED),
    ("csd", "1", "CSD is faster than SWIFT"): ("csd", "swift", FOUR, SPEED),
    ("csd", "1", "CSD is faster than Lookahead"): ("csd", "lookahead", FOUR, SPEED),
    ("csd", "1", "Lookahead slows a 70B target down"): ("vanilla", "lookahead", FOUR, SPEED),
    ("csd", "2", "CSD accepts more than Fly"): (
        "csd[gamma=15]",
        "fly[form=paper,entropy_threshold=0.05]",
        FOUR,
        ACCEPTED,
    ),
    ("csd", "3", "CSD accepts more than speculative decoding"): ("csd", "sps", (ALGEBRA, CODE), ACCEPTED),
    ("csd", "5", "CSD accepts more there, too"): ("csd", "sps", (INSTRUCTIONS, NEEDLES), ACCEPTED),
}


@pytest.mark.parametrize("claim", RATIOS, ids=" ".join)
def test_ratios(documents, checks, claim):
    higher, lower, tasks, columns = RATIOS[claim]
    check, verdicts, sizes = checks[claim], set(), []
    bounds = printed(check["detail"])
    assert len(bounds) == len(tasks) == int(check["data_sets"])
    for task in tasks:
        parts = ratio(documents, higher, lower, task, columns)
        value, low, high = interval(parts)
        assert (value, low, high) == pytest.approx(bounds[task], abs=CLOSE, rel=CLOSE)
        verdicts.add(judged(low, high))
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
    for name, found in (alone | {"Alpaca": interval(*parts.values())}).items():
        assert found == pytest.approx(bounds[name], abs=CLOSE, rel=CLOSE)
    assert check["verdict"] == together({judged(*of[1:]) for of in (*alone.values(), interval(*parts.values()))})


@pytest.mark.parametrize(
    ("claim", "higher", "lower", "tasks"),
    [
        (
            ("csd", "1", "CSD raises the accuracy of both targets on competition mathematics"),
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
    check, verdicts = checks[claim], set()
    for task in tasks:
        mine, other = (of_method(documents, m, task).score for m in (higher, lower))
        wins, losses = int((mine > other).sum()), int((mine < other).sum())
        p = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        points = 100 * (mine - other).mean()
        assert f"{task} {points:+.1f} points (p {p:.3f})" in check["detail"]
        verdicts.add("undecided" if p >= 0.05 else "holds" if points > 0 else "fails")
    assert check["verdict"] == together(verdicts)


def test_an_order(documents, checks):
    """CSD's Table 3 by acceptance: the paper's figures against ours, on each of its two tasks."""
    check = checks["csd", "3", "the order of methods by acceptance"]
    table = pd.read_csv(PUBLISHED / "csd-table3.csv")
    ours = {"SpecDecode": "sps", "SD w/ OCM": "csd-ocm", "SD w/ SCG": "csd-scg", "CSD": "csd"}
    agreements = []
    for label, task in (("MATH500", ALGEBRA), ("HumanEval", CODE)):
        printed_rates = table[(table.task == label) & (table.metric == "AR")].set_index("method").value
        sums = {name: tuple(of_method(documents, method, task)[["A", "D"]].sum()) for name, method in ours.items()}
        one_each = {counts: name for name, counts in reversed(sums.items())}  # variants that decode alike rank once
        rates = [accepted / drafted for accepted, drafted in one_each]
        agreements.append(stats.kendalltau(printed_rates[list(one_each.values())], rates).statistic)
    assert f"Kendall's τ {np.mean(agreements):.2f} " in check["detail"]
    low = float(re.search(r"\[([-\d.]+), ", check["detail"])[1])
    assert check["verdict"] == ("holds" if low >= 0.8 else "undecided")
