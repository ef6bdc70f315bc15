"""Counts and rates against hand-worked numbers, and identities."""

import itertools
import math

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import synthetic

from specbench.analysis import metrics
from specbench.report import comparison
from specbench.results import records


def sample(method, doc_id, decode, *, memory=10, **others):
    failed = {"prefill_seconds": math.nan, "decode_seconds": math.nan} if others.get("finish") == "error" else {}
    return synthetic.sample(method, doc_id, decode, peak_memory=memory, **others) | failed


def round_(number, drafted, accepted, committed, truncated=0, rescued=0, seconds=(0.1, 0.05), forwards=1, levels=None):
    return {
        "round": number,
        "drafted": drafted,
        "levels": levels,  # null: a chain, as in records before version 3
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


class Batches:
    """What is read of `parquet.RowGroups`, of a table in memory."""

    def __init__(self, table):
        self.rows = ds.dataset(table.to_batches(max_chunksize=3))

    def to_batches(self, columns, filter, coded):
        return self.rows.to_batches(columns=columns, filter=filter)

    def to_table(self, columns, filter):
        return self.rows.to_table(columns=columns, filter=filter)


def dataset(rounds):
    """Rounds as they are scanned from files, in several batches."""
    return Batches(pa.Table.from_pylist(rounds, schema=records.ROUNDS))


def counts_of(samples, rounds):
    return metrics.per_document(pd.DataFrame(samples), dataset(rounds))


def rows(method, doc_id, *rounds, task="one", repeat=0, warmup=False):
    key = {"repeat": repeat, "task": task, "doc_id": doc_id, "method": method, "warmup": warmup}
    return [key | round_ for round_ in rounds]


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
    return samples, rounds


@pytest.fixture
def rates(tables):
    return metrics.rates(counts_of(*tables), ["task", "method"])


def test_counts_of_a_document(tables):
    counts = counts_of(*tables)
    assert len(counts) == 7  # 10 samples, 2 warm-ups and 1 failure left out
    one = counts.loc[(0, "one", 0, "sps")]
    names = ["D", "A", "J", "S", "C", "F", "G", "R", "target", "draft", "prefill", "decode", "memory"]
    assert one[names].tolist() == pytest.approx([12, 7, 1, 0, 9, 3, 12, 3, 0.3, 0.15, 0.25, 0.6, 30])


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("acceptance_rate", 10 / 20),
        ("acceptance_rate_in_text", 10 / 17),  # of the cut round of 4, only the first draft stands in the text
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
    assert two[["acceptance_rate", "alpha", "tau", "discard_rate"]].tolist() == [1, 1, 3, 0]
    assert two.verification_rate == pytest.approx(1 / 3)
    assert two.tokens_per_s == pytest.approx(6)


def test_drafts_after_the_end_of_a_text_by_hand(tmp_path):
    """A chain of 20 of which 9 fit, all accepted; and a tree of 5, cut after one level, of which 2 stood there.

    So 9 of 20 + 10 drafts were accepted with those after the end, 9 of 9 + 10 without; and 1 of 5, or of 2.
    """
    names = ("accepted", "unread", "cut", "cut", "cut")
    tree = round_(1, 5, 1, 1, truncated=1, levels=2)
    tree |= {"parents": [-1, -1, 0, 0, 1], "decisions": [records.DECISIONS.index(name) for name in names]}
    run_rows = synthetic.Rows()
    for method, own in (
        ("chain", [round_(1, 10, 0, 1), round_(2, 20, 9, 9, truncated=12)]),
        ("tree", [tree]),
        ("whole", [round_(1, 3, 2, 2, truncated=1)]),  # ends with its last accepted draft: the rejected one is after it
        ("unknown", [round_(1, 5, 1, 2) | {"truncated": None}]),
    ):
        run_rows.add(method, 0, shapes=lambda sample, method=method, own=own: rows(method, 0, PREFILL, *own))
    folder = run_rows.run(tmp_path / "run", baseline=None).folder
    summary = comparison.compare([folder], "md", columns=["+acceptance_rate_in_text"])
    both = summary.set_index("method")[["acceptance_rate", "acceptance_rate_in_text"]]
    assert both.loc["chain"].tolist() == pytest.approx([9 / 30, 9 / 19])
    assert both.loc["tree"].tolist() == pytest.approx([1 / 5, 1 / 2])
    assert both.loc["whole"].tolist() == pytest.approx([2 / 3, 1])
    assert both.loc["unknown"].isna().tolist() == [False, True]


def test_without_drafts_rates_are_undefined_not_zero(rates):
    plain = rates.loc[("one", "plain")]
    assert plain[["acceptance_rate", "alpha", "rescue_rate"]].isna().all()
    assert (plain.tau, plain.verification_rate, plain.discard_rate) == (1, 1, 0)
    assert plain.tokens_per_s == pytest.approx(17 / 103)


def test_a_text_that_ends_with_the_prefill_has_no_rates():
    counts = counts_of([sample("sps", 0, 0.0)], rows("sps", 0, PREFILL))
    table = metrics.rates(counts, ["task", "method"])
    undefined = ["acceptance_rate", "alpha", "tau", "verification_rate", "tokens_per_s", "tokens_per_s_mean"]
    assert table.loc[("one", "sps"), undefined].isna().all()


def test_identities_without_truncation():
    """Any chains: C = D - (D - A) + F, and AR = (1 - V) / (1 - V + d)."""
    rounds = [
        round_(i + 1, drafted, accepted, accepted + 1)
        for i, (drafted, accepted) in enumerate((d, a) for d in range(1, 6) for a in range(d + 1))
    ]
    counts = counts_of([sample("sps", 0, 1.0)], rows("sps", 0, *rounds))
    total = counts.sum()
    assert total.C == total.D - (total.D - total.A) + total.F == sum(r["accepted"] + 1 for r in rounds)
    row = metrics.rates(counts, ["task", "method"]).loc[("one", "sps")]
    v, d = row.verification_rate, row.discard_rate
    assert row.acceptance_rate == pytest.approx((1 - v) / (1 - v + d))


def drifting(per_token):
    samples = [sample("plain", i, 4 * seconds) for i, seconds in enumerate(per_token)]
    rounds = list(itertools.chain(*(rows("plain", i, PREFILL, *single(4)) for i in range(len(per_token)))))
    return metrics.drift(counts_of(samples, rounds))


def test_drift_is_the_move_of_the_median():
    assert drifting([1.0] * 6 + [1.2] * 6) == pytest.approx(0.2)
    assert drifting([1.0] * 6 + [0.5] * 6) == pytest.approx(-0.5)
    assert drifting([1.0] * 6 + [1.0] * 5 + [9.0]) == pytest.approx(0)  # one slow document is no drift
    assert drifting([1.0] * 5 + [1.2] * 5) == pytest.approx(0.2)
    assert drifting([1.0] * 4 + [2.0] * 5) == 0  # too few to tell


def test_what_is_not_told_is_unknown_and_no_zero():
    """An imported run may know what a round committed, but not what it drafted."""
    rounds = rows("sps", 0, *(round_(i, 4, 2, 3) | {"drafted": None, "draft_seconds": None} for i in (1, 2)))
    samples = [sample("sps", 0, 0.5) | {"peak_memory": None}]
    result = metrics.rates(counts_of(samples, rounds), ["task", "method"]).loc[("one", "sps")]
    unknown = ["acceptance_rate", "alpha", "discard_rate", "rescue_rate", "overhead", "peak_memory"]
    assert result[unknown].isna().all()
    assert (result.tau, result.tokens_per_s) == (3, 12)


def test_one_unknown_round_makes_the_rate_unknown():
    rounds = [round_(1, 4, 2, 3), round_(2, 4, 2, 3) | {"accepted": None}]
    result = metrics.rates(counts_of([sample("sps", 0, 0.5)], rows("sps", 0, *rounds)), ["task", "method"])
    assert math.isnan(result.acceptance_rate.iloc[0])


def test_acceptance_by_depth_by_hand():
    """Rounds (D, A): (3, 3), (3, 1), (2, 0), (2, 2) and one cut behind its first token, (3, 1)."""
    rounds = [(3, 3, 0), (3, 1, 0), (2, 0, 0), (2, 2, 0), (3, 1, 2)]
    rounds = [round_(i + 1, d, a, a + 1 - (cut > 0), truncated=cut) for i, (d, a, cut) in enumerate(rounds)]
    counts = metrics.depths(dataset(rows("sps", 0, PREFILL, *rounds) + rows("sps", 0, *rounds, warmup=True)))
    result = metrics.acceptance_by_depth(counts)
    assert result.depth.tolist() == [1, 2, 3]
    # Depth 2 was drafted behind an accepted first token in four rounds, but the cut one never tested it.
    assert result.tested.tolist() == [5, 3, 1]
    assert result.cond_accept.tolist() == pytest.approx([4 / 5, 2 / 3, 1])
    assert result.joint_accept.tolist() == pytest.approx([4 / 5, 2 / 5, 1 / 5])


def test_acceptance_by_depth_of_vanilla_is_empty():
    assert metrics.acceptance_by_depth(metrics.depths(dataset(rows("plain", 0, *single(3))))).empty


def test_a_tree_is_rejected_where_its_verified_path_met_more_levels_than_it_accepted():
    """12 nodes each. Met 3 levels and accepted 2; accepted a path to its leaf, 2 deep; refused at the first level."""
    rounds = [PREFILL, round_(1, 12, 2, 3, levels=3), round_(2, 12, 2, 3, levels=2), round_(3, 12, 0, 1, levels=1)]
    samples = [sample("swift", 0, 1.0)]
    result = metrics.rates(counts_of(samples, rows("swift", 0, *rounds)), ["method"]).loc["swift"]
    assert result.acceptance_rate == pytest.approx(4 / 36)
    assert result.alpha == pytest.approx(4 / 6)  # two rejections
    by_depth = metrics.acceptance_by_depth(metrics.depths(dataset(rows("swift", 0, *rounds))))
    assert by_depth.cond_accept.tolist() == pytest.approx([2 / 3, 1.0, 0.0])
    assert by_depth.joint_accept.tolist() == pytest.approx([2 / 3, 2 / 3, 0.0])
    assert by_depth.tested.tolist() == [3, 2, 1]
