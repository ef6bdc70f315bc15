"""Rates against hand-worked numbers, identities, and the table that people read."""

import io
import itertools
import math

import pandas as pd
import pytest

from specbench import metrics
from specbench.report.tables import render, with_interval


def sample(method, doc_id, decode, *, task="one", repeat=0, prefill=0.25, warmup=False, finish="length", memory=10):
    return {
        "repeat": repeat,
        "task": task,
        "doc_id": doc_id,
        "method": method,
        "warmup": warmup,
        "finish": finish,
        "prefill_seconds": math.nan if finish == "error" else prefill,
        "decode_seconds": math.nan if finish == "error" else decode,
        "peak_memory": memory,
    }


def round_(number, drafted, accepted, committed, truncated=0, rescued=0, seconds=(0.1, 0.05), forwards=1):
    return {
        "round": number,
        "drafted": drafted,
        "accepted": accepted,
        "rescued": rescued,
        "committed": committed,
        "truncated": truncated,
        "target_forwards": forwards,
        "draft_forwards": drafted,
        "target_seconds": seconds[0],
        "draft_seconds": seconds[1],
    }


PREFILL = round_(0, 0, 0, 1, seconds=(50.0, 50.0), forwards=7)  # would spoil every sum if it were counted


def rows(method, doc_id, *rounds, task="one", repeat=0, warmup=False):
    key = {"repeat": repeat, "task": task, "doc_id": doc_id, "method": method, "warmup": warmup}
    return [key | one for one in rounds]


def single(count):
    return [round_(i, 0, 0, 1, seconds=(0.1, 0.0)) for i in range(1, count + 1)]


@pytest.fixture
def tables():
    """Two tasks, two methods; D, A, rejections, S, C, F of `sps` on `one`: 20, 10, 3, 1, 14, 5."""
    samples = [
        sample("sps", 0, 9.0, warmup=True, memory=999),
        sample("plain", 0, 9.0, warmup=True),
        sample("sps", 0, 0.6, memory=30),
        sample("plain", 0, 1.2),
        sample("plain", 1, 1.8),
        sample("sps", 1, 0.4, memory=20),
        sample("plain", 2, 100.0),
        sample("sps", 2, 0.0, finish="error"),
        sample("sps", 0, 0.5, task="two"),
        sample("plain", 0, 0.6, task="two"),
    ]
    rounds = [
        *rows("sps", 0, PREFILL, round_(1, 4, 4, 5), round_(2, 4, 4, 5), warmup=True),
        *rows("plain", 0, PREFILL, *single(9), warmup=True),
        *rows("sps", 0, PREFILL, round_(1, 4, 2, 3), round_(2, 4, 4, 5), round_(3, 4, 1, 1, truncated=3)),
        *rows("plain", 0, PREFILL, *single(9)),
        *rows("plain", 1, PREFILL, *single(6)),
        *rows("sps", 1, PREFILL, round_(1, 4, 0, 1), round_(2, 4, 3, 4, rescued=1)),
        *rows("plain", 2, PREFILL, *single(2)),
        *rows("sps", 0, PREFILL, round_(1, 2, 2, 3), task="two"),
        *rows("plain", 0, PREFILL, *single(3), task="two"),
    ]
    return pd.DataFrame(samples), pd.DataFrame(rounds)


@pytest.fixture
def rates(tables):
    return metrics.rates(metrics.per_document(*tables), ["task", "method"])


def test_counts_of_a_document(tables):
    counts = metrics.per_document(*tables)
    assert len(counts) == 7  # 10 samples, 2 warm-ups and 1 failure left out
    one = counts.loc[(0, "one", 0, "sps")]
    names = ["D", "A", "J", "S", "C", "F", "G", "R", "prefill", "decode", "memory"]
    assert one[names].tolist() == [12, 7, 1, 0, 9, 3, 12, 3, 0.25, 0.6, 30]
    assert one.inside == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("documents", 2),
        ("acceptance_rate", 10 / 20),
        ("alpha", 10 / 13),
        ("tau", 14 / 5),
        ("discard_rate", 10 / 14),
        ("verification_rate", 5 / 14),
        ("rescue_rate", 1 / 20),
        ("tokens_per_s", 14 / 1.0),
        ("tokens_per_s_mean", (9 / 0.6 + 5 / 0.4) / 2),
        ("overhead", 1 - 0.75 / 1.0),
        ("peak_memory", 30),
    ],
)
def test_rates_by_hand(rates, column, expected):
    assert rates.loc[("one", "sps"), column] == pytest.approx(expected)


def test_tasks_are_kept_apart(rates):
    two = rates.loc[("two", "sps")]
    assert two[["documents", "acceptance_rate", "alpha", "tau", "discard_rate"]].tolist() == [1, 1, 1, 3, 0]
    assert two.verification_rate == pytest.approx(1 / 3)
    assert two.tokens_per_s == pytest.approx(6)


def test_without_drafts_rates_are_undefined_not_zero(rates):
    plain = rates.loc[("one", "plain")]
    assert plain[["acceptance_rate", "alpha", "rescue_rate"]].isna().all()
    assert (plain.tau, plain.verification_rate, plain.discard_rate, plain.documents) == (1, 1, 0, 3)
    assert plain.tokens_per_s == pytest.approx(17 / 103)


def test_a_text_that_ends_with_the_prefill_has_no_rates():
    samples = pd.DataFrame([sample("sps", 0, 0.0)])
    rounds = pd.DataFrame(rows("sps", 0, PREFILL))
    table = metrics.rates(metrics.per_document(samples, rounds), ["task", "method"])
    undefined = ["acceptance_rate", "alpha", "tau", "verification_rate", "tokens_per_s", "tokens_per_s_mean"]
    assert table.loc[("one", "sps"), undefined].isna().all()
    assert table.loc[("one", "sps"), "documents"] == 1


def test_identities_without_truncation():
    """Any chains: C = D - (D - A) + F, and AR = (1 - V) / (1 - V + d)."""
    rounds = [
        round_(i + 1, drafted, accepted, accepted + 1)
        for i, (drafted, accepted) in enumerate((d, a) for d in range(1, 6) for a in range(d + 1))
    ]
    counts = metrics.per_document(pd.DataFrame([sample("sps", 0, 1.0)]), pd.DataFrame(rows("sps", 0, *rounds)))
    total = counts.sum()
    assert total.C == total.D - (total.D - total.A) + total.F == sum(r["accepted"] + 1 for r in rounds)
    row = metrics.rates(counts, ["task", "method"]).loc[("one", "sps")]
    v, d = row.verification_rate, row.discard_rate
    assert row.acceptance_rate == pytest.approx((1 - v) / (1 - v + d))


def test_speedups_on_shared_documents(tables):
    """Document 2 failed under sps, so plain's 100 seconds on it do not count."""
    decode, whole = metrics.speedups(metrics.per_document(*tables), "one", "sps", "plain")
    assert decode.value == pytest.approx((3.0 / 15) / (1.0 / 14))
    assert whole.value == pytest.approx((3.5 / 17) / (1.5 / 16))  # each prefill commits a token
    assert decode.low <= decode.value <= decode.high


def test_speedups_of_what_did_not_run(tables):
    counts = metrics.per_document(*tables)
    assert metrics.speedups(counts, "one", "absent", "plain") == (None, None)
    assert metrics.speedups(counts, "absent", "sps", "plain") == (None, None)


def test_end_to_end_counts_one_prefill_token_a_repeat():
    samples, rounds = [], []
    for repeat in (0, 1):
        samples += [sample("plain", 0, 1.0, repeat=repeat), sample("sps", 0, 0.5, repeat=repeat)]
        rounds += rows("plain", 0, PREFILL, *single(4), repeat=repeat)
        rounds += rows("sps", 0, PREFILL, round_(1, 3, 1, 2), repeat=repeat)
    _, whole = metrics.speedups(
        metrics.per_document(pd.DataFrame(samples), pd.DataFrame(rounds)), "one", "sps", "plain"
    )
    # plain: 2 * (0.25 + 1.0) s for 2 * (1 + 4) tokens; sps: 2 * (0.25 + 0.5) s for 2 * (1 + 2) tokens
    assert whole.value == pytest.approx((2.5 / 10) / (1.5 / 6))


def drifting(per_token):
    samples = [sample("plain", i, 4 * seconds) for i, seconds in enumerate(per_token)]
    rounds = list(itertools.chain(*(rows("plain", i, PREFILL, *single(4)) for i in range(len(per_token)))))
    return metrics.drift(metrics.per_document(pd.DataFrame(samples), pd.DataFrame(rounds)), "plain")


def test_drift_is_the_move_of_the_median():
    assert drifting([1.0] * 6 + [1.2] * 6) == pytest.approx(0.2)
    assert drifting([1.0] * 6 + [0.5] * 6) == pytest.approx(-0.5)
    assert drifting([1.0] * 6 + [1.0] * 5 + [9.0]) == pytest.approx(0)  # one slow document is no drift
    assert drifting([1.0] * 2 + [2.0] * 2) == 0  # too few to tell


SCORES = ["repeat", "task", "method", "doc_id", "metric", "filter", "value", "stderr"]


def summary_of(tables, methods=("plain", "sps"), scores=()):
    frame = pd.DataFrame(list(scores), columns=SCORES)
    return metrics.summarize(*tables, frame, {"one": "hit,strict", "two": "hit,strict"}, list(methods), "plain")


@pytest.fixture
def summary(tables):
    return summary_of(
        tables,
        scores=[
            (0, "one", "sps", None, "hit", "strict", 0.25, 0.125),
            (0, "one", "sps", 0, "hit", "strict", 1.0, None),
            (0, "one", "sps", None, "hit", "loose", 0.75, 0.5),
            (0, "one", "plain", None, "hit", "strict", 0.5, 0.25),
        ],
    )


def test_summary(summary):
    assert summary[["task", "method"]].values.tolist() == [
        ["one", "plain"],
        ["one", "sps"],
        ["two", "plain"],
        ["two", "sps"],
    ]
    row = summary.iloc[1]
    assert (row.accuracy, row.accuracy_stderr, row.errors, row.documents) == (0.25, 0.125, 1, 2)
    assert row.speedup_decode == pytest.approx(2.8)
    assert row.speedup_decode_low <= 2.8 <= row.speedup_decode_high
    assert summary.iloc[0].speedup_decode == pytest.approx(1)
    assert math.isnan(summary.iloc[2].accuracy)


def test_summary_where_a_method_failed_everywhere(tables):
    samples, rounds = tables
    samples = pd.concat([samples, pd.DataFrame([sample("broken", 0, 0, finish="error")])], ignore_index=True)
    found = summary_of((samples, rounds), ["plain", "broken"])
    row = found[(found.task == "one") & (found.method == "broken")].iloc[0]
    assert (row.errors, row.documents) == (1, 0)
    assert math.isnan(row.tau) and math.isnan(row.speedup_decode)
    assert "broken" in render(found, "table")


def test_summary_where_everything_failed():
    """A run that has nothing but errors still has a table."""
    samples = pd.DataFrame([sample("plain", 0, 0, finish="error"), sample("sps", 0, 0, finish="error")])
    rounds = pd.DataFrame(rows("plain", 0, PREFILL, warmup=True))
    frame = pd.DataFrame([], columns=SCORES)
    found = metrics.summarize(samples, rounds, frame, {"one": "hit,strict"}, ["plain", "sps"], "plain")
    assert found.errors.tolist() == [1, 1]
    for format in ("table", "csv", "md", "json"):
        assert "sps" in render(found, format)


def interval_row(low, high, method="sps"):
    return pd.Series({"method": method, "baseline": "plain", "s": 1.5, "s_low": low, "s_high": high})


def test_speedup_cells():
    assert with_interval(interval_row(0.9, 1.6), "s") == "1.50 [0.90, 1.60]="
    assert with_interval(interval_row(1.0, 1.6), "s").endswith("=")
    assert with_interval(interval_row(1.2, 1.6), "s") == "1.50 [1.20, 1.60]"
    assert with_interval(interval_row(0.7, 0.9), "s") == "1.50 [0.70, 0.90]"
    assert "base" in with_interval(interval_row(1, 1, "plain"), "s")


@pytest.mark.parametrize("errors", [0, 3])
@pytest.mark.parametrize("runs", [False, True])
def test_table_fits_80_columns(summary, errors, runs):
    wide = summary.assign(method=["plain", "speculate-12", "plain", "speculate-12"], errors=errors)
    wide = wide.assign(speedup_decode=2.34, speedup_decode_low=0.98, speedup_decode_high=3.45, tokens_per_s=1234.5)
    if runs:
        wide = wide.assign(run="20260101-120000-math-csd")
    lines = render(wide, "table", 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("2.34 [0.98, 3.45]=" in line for line in lines) or runs or errors
    assert any("speculate-12" in line for line in lines) or runs


def test_formats_parse_back(summary):
    csv = pd.read_csv(io.StringIO(render(summary, "csv")))
    back = pd.read_json(io.StringIO(render(summary, "json")))
    for found in (csv, back):
        assert found.method.tolist() == summary.method.tolist()
        assert found.tau.tolist() == pytest.approx(summary.tau.tolist())
    lines = [line.strip("| ").split(" | ") for line in render(summary, "md").splitlines()]
    assert len({len(line) for line in lines}) == 1 and len(lines) == 2 + len(summary)
    assert set(lines[1]) == {"---"}
    assert lines[3][lines[0].index("τ")] == "2.80"
