"""The summary of a run against a second, naive implementation, on random runs and on a real one."""

import itertools
import math
import tempfile
from pathlib import Path
from typing import Any

import naive_metrics
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from synthetic import CHAIN, SINGLE, Rows, sample, scores, write_run

from specbench.analysis import compare, pooled
from specbench.measure import loop
from specbench.plan import resolve_plan
from specbench.results.stored import StoredRun

Row = dict[str, Any]
Tables = tuple[list[Row], list[Row], list[Row]]  # samples, rounds, scores
COUNTS = ["documents", "errors"]
OF_SAMPLES = ["prefill_seconds", "decode_seconds", "peak_memory"]
OF_ROUNDS = ["drafted", "accepted", "rescued", "committed", "truncated", "target_forwards", "target_seconds"]
seconds = st.floats(1 / 64, 8)
many = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
no_shrinking = settings(many, phases=[Phase.generate])


@st.composite
def round_rows(draw: st.DrawFn, drafts: bool, cuts: bool) -> list[Row]:
    """The prefill and up to four rounds of a chain; the last may be cut anywhere by the end of the text."""
    prefill = {"drafted": 0, "accepted": 0, "rescued": 0, "committed": 1, "truncated": 0}
    rows = [prefill | {"target_forwards": 1, "draft_forwards": 1, "target_seconds": 3.0, "draft_seconds": 2.0}]
    count = draw(st.integers(0, 4))
    for number in range(1, count + 1):
        drafted = draw(st.integers(0, 5)) if drafts else 0
        verified = draw(st.integers(0, drafted))
        kept = draw(st.integers(1, verified + 1)) if cuts and number == count else verified + 1
        accepted = min(verified, kept)
        row: Row = {"drafted": drafted, "accepted": accepted, "committed": kept, "truncated": verified + 1 - kept}
        row |= {"rescued": draw(st.integers(0, accepted)), "draft_forwards": drafted}
        row |= {"target_forwards": draw(st.integers(1, 2)), "target_seconds": draw(seconds)}
        rows.append(row | {"draft_seconds": draw(seconds) if drafted else 0.0})
    return [{"round": number} | row for number, row in enumerate(rows)]


@st.composite
def runs(draw: st.DrawFn, cuts: bool = True, unknown: bool = False) -> Tables:
    """A small run. With `unknown` some values are missing in some samples, as in records from elsewhere."""
    methods = ["plain", "sps", "csd"][: draw(st.integers(2, 3))]
    samples: list[Row] = []
    rounds: list[Row] = []
    score_rows: list[Row] = []
    repeats = draw(st.integers(1, 2))
    for task in ["one", "two", "three"][: draw(st.integers(1, 3))]:
        documents = draw(st.integers(1, 3))
        values = st.sampled_from([0.0, 1.0, 0.25] if documents > 1 else [1.0])
        for repeat, method in ((r, m) for r in range(repeats) for m in methods):
            scored = []
            for doc in range(documents):
                first = doc == repeat == 0
                kind = draw(st.sampled_from(["good", "good", "error"] if first else ["good", "good", "error", "none"]))
                for warmup in (True, False) if draw(st.booleans()) else (False,):
                    key = {"repeat": repeat, "task": task, "doc_id": doc, "method": method, "warmup": warmup}
                    blank = dict.fromkeys(draw(st.sets(st.sampled_from(OF_SAMPLES + OF_ROUNDS), max_size=2)))
                    blank = blank if unknown and draw(st.booleans()) else {}
                    if kind == "error":
                        samples.append(key | {"finish": "error", "error": "Traceback"})
                    if kind == "good":
                        every = draw(round_rows(method != "plain", cuts))
                        own = key | {"finish": "length", "prefill_seconds": draw(seconds)}
                        own |= {"decode_seconds": draw(seconds) if len(every) > 1 else 0.0}
                        own |= {"peak_memory": draw(st.integers(1, 2**40))}
                        samples.append(own | {name: None for name in blank if name in OF_SAMPLES})
                        blank = {name: None for name in blank if name in OF_ROUNDS}
                        rounds += [key | one | (blank if one["round"] else {}) for one in every]
                scored += [doc] * (kind == "good" or doc < 2)
            for metric in ("hit", "miss"):  # hit,strict is the headline
                line = {"repeat": repeat, "task": task, "method": method, "metric": metric, "filter": "strict"}
                score_rows += [line | {"doc_id": doc, "value": draw(values)} for doc in scored]
                whole = {"value": draw(st.floats(0, 1)), "stderr": draw(st.floats(0, 1) | st.none())}
                score_rows.append(line | {"doc_id": None} | whole)
    return samples, rounds, score_rows


def close(expected: float) -> Any:
    return pytest.approx(expected, rel=1e-12, abs=1e-12, nan_ok=True)


def check_summary(folder: Path) -> None:
    summed = compare.summary(pooled.measured([StoredRun(folder)]))
    expected = naive_metrics.summary(folder)
    assert sorted(zip(summed.task, summed.method, strict=True)) == sorted(expected)
    for _, row in summed.iterrows():
        for name, value in expected[row.task, row.method].items():
            wanted = value if name in COUNTS else close(value)
            assert row[name] == wanted, (row.task, row.method, name)


def check_depths(folder: Path, cut_was_tested: bool) -> None:
    table = compare.depth_table(pooled.measured([StoredRun(folder)], with_depths=True))
    rows = {(row.task, row.method, row.depth): row for row in table.itertuples()}
    keys = [at for at in naive_metrics.summary(folder) if at[0] != "average"]
    naive = {at: naive_metrics.depths(folder, *at, cut_was_tested) for at in keys}
    expected = {(*at, depth): row for at, result in naive.items() for depth, row in result.items()}
    assert set(rows) == set(expected)
    for at, row in rows.items():
        wanted = expected[at]
        assert row.tested == wanted["tested"], at
        assert row.cond_accept == close(wanted["cond_accept"]), at
        assert row.joint_accept == close(wanted["joint_accept"]), at


@pytest.mark.long
@many
@given(runs(), st.sampled_from(["plain", "sps", None]))
def test_random_runs(tables: Tables, baseline: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_summary(write_run(Path(folder) / "run", *tables, baseline=baseline))


@pytest.mark.long
@no_shrinking
@given(runs(unknown=True))
def test_random_runs_with_unknown_values(tables: Tables) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_summary(write_run(Path(folder) / "run", *tables))


@pytest.mark.long
@many
@given(runs(cuts=False))
def test_depths_of_random_runs_without_a_cut(tables: Tables) -> None:
    assume(any(row["round"] > 0 and not row["warmup"] for row in tables[1]))
    with tempfile.TemporaryDirectory() as folder:
        check_depths(write_run(Path(folder) / "run", *tables), cut_was_tested=True)


@pytest.mark.long
@many
@given(runs())
def test_depths_of_random_runs(tables: Tables) -> None:
    """A draft behind the end of the text is not tested."""
    assume(any(row["round"] > 0 and not row["warmup"] for row in tables[1]))
    with tempfile.TemporaryDirectory() as folder:
        check_depths(write_run(Path(folder) / "run", *tables), cut_was_tested=False)


def one_document(folder: Path, method: Row | None = None, score: float = 1.0) -> Path:
    """`plain` takes 1 s and 4 rounds for 4 tokens, `sps` 0.5 s and 2 rounds (D, A) = (3, 1), all in document 0."""
    rows = Rows()
    rows.add("plain", 0, 1.0, SINGLE)
    rows.add("sps", 0, 0.5, CHAIN, **(method or {}))
    rows.scores += scores("sps", [score])
    return rows.run(folder).folder


def summary_of(folder: Path) -> Row:
    summed = compare.summary(pooled.measured([StoredRun(folder)]))
    return summed[summed.method == "sps"].iloc[0].to_dict()


def test_naive_by_hand(tmp_path: Path) -> None:
    """The judge is judged: 4 tokens in 2 rounds with D, A = 6, 2; the prefill takes 0.25 s for 1 token."""
    folder = one_document(tmp_path / "a", score=0.0)
    row = naive_metrics.summary(folder)["one", "sps"]
    expected = {"documents": 1, "acceptance_rate": 2 / 6, "alpha": 2 / 4, "tau": 2, "discard_rate": 4 / 4}
    expected |= {
        "acceptance_rate_in_text": 2 / 6,
        "verification_rate": 2 / 4,
        "rescue_rate": 0,
        "tokens_per_s": 8,
        "tokens_per_s_mean": 8,
    }
    expected |= {"tokens_per_s_e2e": 5 / 0.75, "tokens_per_s_e2e_mean": 5 / 0.75}
    expected |= {"arbitrator_share": 0.0, "overhead": (0.5 - 0.2 - 0.1) / 0.5, "peak_memory": 10, "errors": 0}
    expected |= {"speedup_decode": 2, "speedup_e2e": (1.25 / 5) / (0.75 / 5)}
    expected |= {"accuracy": 0, "accuracy_stderr": 0.125, "accuracy_delta": -1}
    assert row == pytest.approx(expected)
    check_summary(folder)


def test_one_document_with_a_graded_score(tmp_path: Path) -> None:
    row = summary_of(one_document(tmp_path / "a", score=0.5))
    assert row["accuracy_delta"] == -0.5 and row["accuracy_p"] == 1


def test_the_decode_speedup_needs_no_prefill_times(tmp_path: Path) -> None:
    row = summary_of(one_document(tmp_path / "a", {"prefill_seconds": None}))
    assert row["speedup_decode"] == 2 and math.isnan(row["speedup_e2e"])


def test_an_unknown_time_of_one_document_is_no_zero(tmp_path: Path) -> None:
    """Two documents of 4 tokens each; how long `sps` took for the second is unknown, and so is the speedup."""
    rows = Rows()
    for doc, method in itertools.product(range(2), ("plain", "sps")):
        rows.add(method, doc, 1.0, SINGLE)
    rows.samples[-1]["decode_seconds"] = None
    assert math.isnan(summary_of(rows.run(tmp_path / "a").folder)["speedup_decode"])


def depths_of(folder: Path, plain: Row, mine: Row) -> pd.DataFrame:
    """Of a run with one document: plain, and (D, A) = (2, 1); both last rounds say something else."""
    rows = Rows()
    rows.add("plain", 0, 1.0, [(0, 0)])[-1].update(plain)
    rows.add("sps", 0, 1.0, [(2, 1)])[-1].update(mine)
    return compare.depth_table(pooled.measured([rows.run(folder)], with_depths=True))


def test_one_unknown_cut_does_not_change_the_depths_of_another_method(tmp_path: Path) -> None:
    """(D, A) = (2, 1) cut behind its first token: depth 2 was drafted, and not tested."""
    table = depths_of(tmp_path / "a", {"truncated": None}, {"committed": 1, "truncated": 1})
    assert table[["method", "depth", "tested"]].values.tolist() == [["sps", 1, 1], ["sps", 2, 0]]


def test_unknown_drafts_have_no_depths(tmp_path: Path) -> None:
    assert depths_of(tmp_path / "a", {}, {"drafted": None}).empty


def test_a_run_without_rounds_has_an_empty_depth_table(tmp_path: Path) -> None:
    failed = [sample(name, 0, finish="error", prefill=None) | {"decode_seconds": None} for name in ("plain", "sps")]
    run = write_run(tmp_path / "a", failed, [], [])
    assert compare.depth_table(pooled.measured([StoredRun(run)], with_depths=True)).empty


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two documents each of two bundled tasks, decoded by the bundled pair in two passes."""
    folder = tmp_path_factory.mktemp("runs") / "real"
    plan = resolve_plan(
        methods=["sps", "csd"],
        suite="smoke",
        pair="pocket",
        assignments=[],
        baseline="vanilla",
        limit=2,
        repeats=2,
        data_dir=None,
        device="cpu",
    )
    assert loop.execute(plan, folder, lambda progress: True)
    return folder


@pytest.mark.long
def test_a_real_run(real: Path) -> None:
    expected = naive_metrics.summary(real)
    assert len(expected) == 9 and all(row["tau"] > 1 for (_, method), row in expected.items() if method != "vanilla")
    check_summary(real)
    check_depths(real, cut_was_tested=False)


@pytest.mark.long
def test_every_uncut_round_of_a_real_run_adds_up(real: Path) -> None:
    """C = D - (D - A) + F of chains; V and d by their other route."""
    later = [row for row in naive_metrics.rows(real, "rounds") if row["round"] > 0]
    uncut = [row for row in later if row["truncated"] == 0]
    assert len(uncut) > 100 and {row["method"] for row in uncut} == {"vanilla", "sps", "csd"}
    for row in uncut:
        discarded = row["drafted"] - row["accepted"]
        assert row["committed"] == row["drafted"] - discarded + row["target_forwards"]
    for row in later:
        assert 0 <= row["rescued"] <= row["accepted"] <= row["drafted"] and row["accepted"] <= row["committed"]
