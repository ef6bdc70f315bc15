"""Reliability of predicted acceptance: hand-worked bins, a counted AUROC, resamples by a plain loop, and the view."""

import io
import json
import math
import time

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from screens import call, rendered
from synthetic import Rows, rounds

from specbench.analysis import acceptance as acceptance_analysis
from specbench.analysis import reliability
from specbench.analysis.acceptance import POOLED, acceptance
from specbench.config import UserError
from specbench.report.views.acceptance import notes, view
from specbench.results import records
from specbench.results.stored import StoredRun

R, A, S, U, C = range(len(records.DECISIONS))  # rejected, accepted, rescued, unread, cut
NAN = math.nan
BOUNDS = {"shortest": 2, "longest": 20}


def drafts(row, *each):
    """Rounds of one sample; each has decisions, predictions and confidences."""
    results = []
    for number, (decisions, predictions, confidences) in enumerate(each, 1):
        accepted = sum(decision in (A, S) for decision in decisions)
        (_, one) = rounds(row, (len(decisions), accepted))
        lists = {"decisions": decisions, "predictions": predictions, "confidences": confidences}
        results.append(one | lists | {"round": number, "rescued": decisions.count(S)})
    return results


def made(folder, documents, settings=None, name="specdecpp", **plan):
    """A run of one method: `documents` holds the rounds by task and document."""
    rows = Rows()
    for (task, doc), each in documents.items():
        rows.add("plain", doc, 1.0, [(0, 0)], task=task)
        rows.add(name, doc, 1.0, lambda row, each=each: drafts(row, *each), task=task)
    return rows.run(folder, settings={name: BOUNDS if settings is None else settings}, **plan)


@pytest.fixture
def small(tmp_path):
    """Two documents of one task and one of another, worked out below."""
    return made(
        tmp_path / "run",
        {
            ("one", 0): [
                ([A, A, R, U], [0.75, 0.25, 0.75, 0.5], [0.5, 0.5, 0.25, 0.5]),
                ([A, R, U], [0.75, NAN, NAN], [0.75, 0.5, 0.5]),
            ],
            ("one", 1): [
                ([R], [0.25], [0.25]),
                ([A, A, C], [0.75, 0.75, 0.5], [1.0, 0.5, 0.5]),
                ([S, A], [0.25, NAN], [0.125, 0.5]),
            ],
            ("two", 5): [([A, R], [0.75, 0.25], [0.5, 0.75])],
        },
    )


def figure(result, task, name):
    (row,) = result.figures[(result.figures.task == task) & (result.figures.figure == name)].to_dict("records")
    return row["value"], row["low"], row["high"]


def test_bins_and_errors_by_hand(small):
    """Task one: 0.25 is said of an accepted, a rejected and a rescued token, 0.75 of four accepted and a rejected."""
    analysis = acceptance(small, None)
    assert analysis.method == "specdecpp"
    assert (analysis.rescued, analysis.unscored, analysis.unseen, analysis.unsure) == (1, 2, 1, 0)
    bins = analysis.bins[analysis.bins.task == "one"]
    assert bins[["low", "high", "count", "prediction", "accepted"]].values.tolist() == [
        pytest.approx(row) for row in ([0.2, 0.3, 3, 0.25, 2 / 3], [0.7, 0.8, 5, 0.75, 4 / 5])
    ]
    assert figure(analysis, "one", "ece")[0] == pytest.approx((abs(0.75 - 2) + abs(3.75 - 4)) / 8)
    brier = (2 * 0.75**2 + 0.25**2 + 4 * 0.25**2 + 0.75**2) / 8
    assert figure(analysis, "one", "brier")[0] == pytest.approx(brier)
    facts = analysis.tasks.set_index("task")
    assert facts.loc["one"].tolist() == pytest.approx([2, 8, 6 / 8, 4.5 / 8, 4])
    assert facts.loc[POOLED].tolist() == pytest.approx([3, 10, 7 / 10, 5.5 / 10, 5])


def test_gaps_within_a_bin_cancel_and_over_bins_do_not(tmp_path):
    """0.5 and 0.59 share a bin, where too high makes up for too low; 0.6 opens the next one, and 1 is in the last."""
    each = [([A], [0.5], None), ([A], [0.59], None), ([R], [0.59], None), ([A], [0.6], None), ([A], [1.0], None)]
    analysis = acceptance(made(tmp_path / "run", {("one", 0): each}), None)
    assert analysis.bins["count"].tolist() == [3, 1, 1]
    assert analysis.bins.low.tolist() == pytest.approx([0.5, 0.6, 0.9])
    assert figure(analysis, "one", "ece")[0] == pytest.approx((abs(1.68 - 2) + 0.4 + 0) / 5, rel=1e-6)


def test_auroc_by_hand(small):
    """Task one. Rejected at 0.75 and 0.25; accepted: four at 0.75, two at 0.25.

    The first beats no accepted token and ties with four (2 of 6), the second beats four and ties with two (5 of 6).
    Confidences: rejected 0.25 and 0.25; accepted .5 .5 .75 1 .5 .125: each beats five of six.
    """
    analysis = acceptance(small, None)
    assert figure(analysis, "one", "auroc")[0] == pytest.approx((2 + 5) / 12)
    assert figure(analysis, "one", "auroc_draft")[0] == pytest.approx(10 / 12)
    assert figure(analysis, "one", "auroc_difference")[0] == pytest.approx(-3 / 12)
    assert figure(analysis, "two", "auroc")[0] == 1


def test_drafts_by_hand(small):
    """Task one: chances 0.75·0.25·0.75·0.5 (fell), 0.75 (stood), 0.25 (fell), 0.25 (stood); one ended unseen.

    The last token of the second draft was refused, but it was not scored.
    """
    analysis = acceptance(small, None)
    stops = analysis.stops[analysis.stops.task == "one"]
    assert stops[["low", "count", "prediction", "accepted"]].values.tolist() == [
        pytest.approx(row) for row in ([0.0, 1, 0.0703125, 0], [0.2, 2, 0.25, 0.5], [0.7, 1, 0.75, 1])
    ]
    assert figure(analysis, "one", "stop_ece")[0] == pytest.approx((0.0703125 + 0.5 + 0.25) / 4)


def rows_of(rng, documents, tokens, tasks=("one",), shift=0.0):
    """Tokens whose predictions are right but for `shift`; ties are frequent."""
    chance = rng.beta(2, 1, tokens).round(2)
    return pd.DataFrame(
        {
            "task": rng.choice(tasks, tokens),
            "doc_id": rng.integers(0, documents, tokens),
            "prediction": chance,
            "accepted": rng.random(tokens) < np.clip(chance + shift, 0, 1),
            "confidence": np.clip(chance + rng.normal(0, 0.2, tokens), 0, 1).round(1),
        }
    )


def counted(rows, column):
    """AUROC by comparing every rejected token with every accepted one."""
    lost, kept = (rows[rows.accepted == one][column].to_numpy() for one in (False, True))
    return ((lost[:, None] < kept).sum() + (lost[:, None] == kept).sum() / 2) / (len(lost) * len(kept))


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_auroc_is_that_of_all_pairs(step, monkeypatch):
    monkeypatch.setattr(reliability, "STEP", step)
    rows = rows_of(np.random.default_rng(1), 20, 700, ("one", "two"))
    result = reliability.discrimination(rows)
    assert result["auroc"].value == pytest.approx(counted(rows, "prediction"))
    assert result["auroc_draft"].value == pytest.approx(counted(rows, "confidence"))
    difference = counted(rows, "prediction") - counted(rows, "confidence")
    assert result["auroc_difference"].value == pytest.approx(difference)


@pytest.mark.long
def test_intervals_are_those_of_resampled_documents():
    """Documents put together again, within their tasks, by a plain loop with random numbers of its own."""
    rng = np.random.default_rng(2)
    rows = rows_of(rng, 12, 1500, ("one", "two"), shift=-0.15)
    parts = {task: [one for _, one in mine.groupby("doc_id")] for task, mine in rows.groupby("task")}
    drawn = {"brier": [], "auroc": [], "auroc_difference": [], "share": []}
    for _ in range(600):
        again = pd.concat([own[i] for own in parts.values() for i in rng.integers(0, len(own), len(own))])
        drawn["brier"].append(((again.prediction - again.accepted) ** 2).mean())
        drawn["auroc"].append(counted(again, "prediction"))
        drawn["auroc_difference"].append(drawn["auroc"][-1] - counted(again, "confidence"))
        drawn["share"].append(again[again.prediction.between(0.795, 0.895)].accepted.mean())
    result = {"brier": reliability.brier(rows), **reliability.discrimination(rows)}
    bins = reliability.calibration(rows).bins.set_index("low")
    shares = bins.loc[bins.index[np.isclose(bins.index, 0.8)][0]]
    intervals = {name: (result[name].low, result[name].high) for name in drawn if name != "share"}
    intervals["share"] = shares.accepted_low, shares.accepted_high
    for name, values in drawn.items():
        low, high = np.quantile(values, [0.025, 0.975])
        assert intervals[name] == pytest.approx((low, high), abs=0.15 * (high - low)), name


def test_documents_are_drawn_within_their_tasks():
    weights = reliability.task_weights([3, 2, 5])
    assert weights.shape == (10_000, 10)
    for part, count in ((weights[:, :3], 3), (weights[:, 3:5], 2), (weights[:, 5:], 5)):
        assert (part.sum(1) == count).all()
    alike = reliability.task_weights([4, 4])
    assert abs(np.corrcoef(alike[:, 0], alike[:, 4])[0, 1]) < 0.05
    assert reliability.task_weights([3, 1]) is None
    assert reliability.task_weights([]) is None


def test_perfect_predictions_and_biased_ones():
    rng = np.random.default_rng(3)
    perfect = reliability.calibration(rows_of(rng, 200, 100_000)).ece
    assert perfect.value < 0.01
    assert perfect.low == 0
    biased = reliability.calibration(rows_of(rng, 200, 100_000, shift=-0.1)).ece
    assert biased.value == pytest.approx(0.098, abs=0.01)
    assert 0.08 < biased.low < biased.value < biased.high < 0.12


def test_interval_of_a_small_error_reaches_zero():
    """Few tokens: chance alone makes gaps, and the interval has to say so; the true error is 0."""
    rng = np.random.default_rng(4)
    results = [reliability.calibration(rows_of(rng, 40, 600)).ece for _ in range(40)]
    assert all(result.low <= result.value <= result.high for result in results)
    assert sum(result.low == 0 for result in results) >= 36
    assert np.mean([result.value for result in results]) > 0.02


def test_one_document_has_no_interval(small):
    analysis = acceptance(small, None)
    for name in ("ece", "brier", "auroc", "auroc_difference"):
        value, low, high = figure(analysis, "two", name)
        assert (value == value, low == low, high == high) == (True, False, False)
    # The pooled figures draw within tasks, so one document makes theirs unknown as well.
    assert math.isnan(figure(analysis, POOLED, "ece")[1])
    two = analysis.bins[(analysis.bins.task == "two")]
    assert two.accepted_low.isna().all()


def test_a_bin_of_one_document_has_no_interval(tmp_path):
    """0.25 is said in the first document alone, 0.75 in both."""
    both = [([A], [0.75], None), ([R], [0.75], None)]
    documents = {("one", 0): [*both, ([A], [0.25], None), ([R], [0.25], None)], ("one", 1): both}
    bins = acceptance(made(tmp_path / "run", documents), None).bins
    assert bins.accepted.tolist() == [0.5, 0.5]
    assert bins.accepted_low.isna().tolist() == bins.accepted_high.isna().tolist() == [True, False]


def test_greedy_runs_have_no_confidences(tmp_path):
    each = [([A, R], [0.75, 0.5], None), ([A, A], [0.75, NAN], [0.5, 0.5])]
    analysis = acceptance(made(tmp_path / "run", {("one", 0): each, ("one", 1): each}), None)
    assert analysis.unsure == 4
    assert set(analysis.figures.figure) == {"ece", "brier", "auroc", "stop_ece"}
    lines = [line for line in notes(analysis) if "q(d)" in line]
    assert len(lines) == 1 and "not recorded for 4 tokens" in lines[0]


def test_nothing_was_rejected(tmp_path):
    analysis = acceptance(made(tmp_path / "run", {("one", doc): [([A], [0.75], [0.5])] for doc in (0, 1)}), None)
    assert math.isnan(figure(analysis, "one", "auroc")[0])
    assert figure(analysis, "one", "ece")[0] == pytest.approx(0.25)
    assert "AUROC" in rendered(view(analysis))


def test_which_tokens_could_be_seen(tmp_path):
    def notes_of(name, settings):
        each = [([A], [0.75], [0.5])]
        return " ".join(notes(acceptance(made(tmp_path / name, {("one", 0): each}, settings), None)))

    assert "drafts of 2 to 20 tokens: what lies beyond a stop was never seen" in notes_of("a", BOUNDS)
    assert "all drafts may have 8 tokens, whatever was predicted" in notes_of("b", {"shortest": 8, "longest": 8})
    assert "it is not known if predictions kept tokens out of them" in notes_of("c", {"length": "specdecpp"})


def test_the_method_that_is_chosen(small, tmp_path):
    assert acceptance(small, "specdecpp").method == "specdecpp"
    with pytest.raises(UserError, match=r"no predictions of a method plain; it has those of specdecpp"):
        acceptance(small, "plain")
    each = {("one", 0): [([A], [0.75], None)]}
    for name, settings in (("entropy", {}), ("csd", {"length": "entropy"})):
        with pytest.raises(UserError, match=f"{name} goes by entropy, which is not a probability"):
            acceptance(made(tmp_path / name, each, settings, name=name), None)
    nats = made(tmp_path / "nats", {("one", 0): [([A], [1.25], None)]}, {"length": "mine.yaml"}, name="sps")
    with pytest.raises(UserError, match=r"the predictions of sps in .* are not probabilities"):
        acceptance(nats, None)


def test_runs_that_do_not_tell(small, tmp_path):
    without = made(tmp_path / "without", {("one", 0): [([A], None, None)]})
    with pytest.raises(UserError, match=r"has predictions of its draft tokens on record; `specbench run --method spec"):
        acceptance(without, None)
    old = small.rounds().to_table().drop_columns(["predictions", "confidences"])
    pq.write_table(old, small.folder / "rounds.parquet")
    with pytest.raises(UserError, match="has predictions of its draft tokens"):
        acceptance(StoredRun(small.folder), None)
    for number, (each, match) in enumerate(
        (
            (([A, A], [0.5], None), "lists of different lengths"),
            (([A, A], [0.5, 0.5], [0.5]), "lists of different lengths"),
            (([A], [NAN], None), "was both scored and tested"),
        )
    ):
        with pytest.raises(UserError, match=match):
            acceptance(made(tmp_path / str(number), {("one", 0): [each]}), None)


def test_warm_up_and_batches_of_rounds(small):
    """Warm-up rounds count for nothing, and how rounds are read does not change a figure."""
    before = acceptance(small, None)
    table = small.rounds().to_table().to_pylist()
    records.write_table(
        small.folder / "rounds.parquet", [*table, *(row | {"warmup": True} for row in table)], records.ROUNDS
    )
    path = small.folder / "rounds.parquet"
    pq.write_table(pq.read_table(path), path, row_group_size=1)
    after = acceptance(StoredRun(small.folder), None)
    assert after.tasks.equals(before.tasks)
    pd.testing.assert_frame_equal(after.figures, before.figures)
    pd.testing.assert_frame_equal(after.bins, before.bins)


def test_repeats_of_a_document_are_drawn_together(tmp_path):
    """Ten repeats of two documents, one always right and one always wrong: the share is anywhere from 0 to 1."""
    run = made(tmp_path / "run", {("one", 0): [([A], [0.75], None)] * 10, ("one", 1): [([R], [0.75], None)] * 10})
    rows = acceptance_analysis.tested_tokens(run, "specdecpp").tokens
    assert rows.groupby(["task", "doc_id"], observed=True).size().tolist() == [10, 10]
    bins = acceptance(run, None).bins
    assert bins[["accepted", "accepted_low", "accepted_high"]].values.tolist() == [[0.5, 0, 1]]


def test_a_million_tokens_take_seconds():
    rows = rows_of(np.random.default_rng(5), 300, 1_000_000)
    began = time.process_time()
    reliability.calibration(rows)
    reliability.discrimination(rows)
    assert time.process_time() - began < 30


def test_the_view(small):
    text = rendered(view(acceptance(small, None)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert max(map(len, text.splitlines())) <= 80
    assert "PREDICTIONS OF specdecpp: 10 tested draft tokens of 3 documents" in lines
    assert "one 2 8 75.0% 56.2% 4" in lines
    assert any(line.startswith("one 0.188 [") for line in lines)
    assert "0.7 0.8 6 0.750 0.833" in lines
    assert "1 rescued tokens count as accepted" in lines


def test_names_with_brackets_are_printed_whole(tmp_path):
    run = made(tmp_path / "run", {("one", 0): [([A], [0.75], None)]}, name="specdecpp[threshold=0.7]")
    assert "PREDICTIONS OF specdecpp[threshold=0.7]: 1 tested" in rendered(view(acceptance(run, None)))


def test_the_command(small):
    facts = json.loads(call("analyze", "acceptance", small.folder, "--format", "json").stdout)
    assert facts["method"] == "specdecpp" and facts["selected"] is True
    assert [row["task"] for row in facts["tasks"]] == ["one", "two", POOLED]
    assert {row["figure"] for row in facts["figures"]} == set(acceptance_analysis.FIGURES)
    rows = pd.read_csv(io.StringIO(call("analyze", "acceptance", small.folder, "--format", "csv").stdout))
    assert rows.columns.tolist() == ["analysis", "table", "row", "column", "value"]
    assert rows[(rows.table == "tasks") & (rows.column == "tokens")].value.astype(int).tolist() == [8, 2, 10]
    table = call("analyze", "acceptance", small.folder, "--method", "specdecpp")
    assert table.exit_code == 0 and "PREDICTIONS OF specdecpp" in table.stdout
