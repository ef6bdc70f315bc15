"""Who decoded a text: speedups within workers, a table of them, and no tokens/s of unlike machines together."""

import json
import math

import pandas as pd
import pytest
from screens import output
from synthetic import CHAIN, ENVIRONMENT, SINGLE, Rows, change_manifest, scores

from specbench.analysis import by_worker, compare, pooled, time_warnings, workers

SLOW = {1: 1.0, 2: 2.0}  # seconds of the baseline for 4 tokens, by worker
GAIN = {1: 2, 2: 1}  # the speedup of sps there


def run_of(folder, worker_of, documents=8, repeats=1, batched=None, **options):
    """A run in which a worker's times are the same for all documents; `worker_of` tells whose each pass is.

    `batched`: the seconds that each text took of a batch, too.
    """
    rows = Rows()
    for repeat in range(repeats):
        for doc in range(documents):
            worker = worker_of(doc, repeat)
            who = {"host": f"node{worker}", "device": f"GPU-{worker}", "worker": worker, "attempt": 1}
            for name, shapes in (("plain", SINGLE), ("sps", CHAIN)):
                seconds = SLOW[worker] / (GAIN[worker] if name == "sps" else 1)
                rows.add(name, doc, seconds, shapes, repeat=repeat, batch_seconds=batched, **who)
        for name in ("plain", "sps"):
            rows.scores += scores(name, [1] * documents, repeat=repeat)
    return rows.run(folder, **options)


def halves(doc, repeat=0):
    return 1 + (doc >= 4)


def speedup(run):
    summed = compare.summary(pooled.measured([run]))
    return summed[summed.method == "sps"].iloc[0]


def test_intervals_are_of_documents_within_workers(tmp_path):
    """Each worker's documents say the same, so nothing varies: 12 seconds over 10."""
    ratio = speedup(run_of(tmp_path / "a", halves))
    assert ratio.speedup_decode == pytest.approx(1.2)
    assert (ratio.speedup_decode_low, ratio.speedup_decode_high) == pytest.approx((1.2, 1.2))


def test_documents_that_other_workers_decode_in_the_next_repeat_are_told_apart(tmp_path):
    """Even documents go to worker 1 first, then to 2; odd ones always to worker 1: alike within both groups."""
    ratio = speedup(run_of(tmp_path / "a", lambda doc, repeat: 1 + (doc % 2 == 0 and repeat), repeats=2))
    assert ratio.speedup_decode == pytest.approx((4 * 3 + 4 * 2) / (4 * 2.5 + 4 * 1))
    assert ratio.speedup_decode_low == pytest.approx(ratio.speedup_decode_high)


def test_the_run_of_one_worker_is_as_one_that_tells_none(tmp_path):
    """The same times; the second is as of a version that did not record who decoded."""
    named = run_of(tmp_path / "named", lambda doc, repeat: 1)
    rows = Rows()
    for doc in range(8):
        for name, shapes in (("plain", SINGLE), ("sps", CHAIN)):
            rows.add(name, doc, SLOW[1] / (GAIN[1] if name == "sps" else 1), shapes)
    rows.scores += scores("plain", [1] * 8) + scores("sps", [1] * 8)
    untold = rows.run(tmp_path / "untold")
    one, other = (compare.summary(pooled.measured([run])) for run in (named, untold))
    assert one.equals(other)
    facts = workers.of_texts(untold, untold.samples())
    assert set(facts.worker) == {0} and set(facts.host) == {""} and set(facts.number) == {0}


def test_a_table_of_workers(tmp_path):
    run = run_of(tmp_path / "a", halves)
    comparison = by_worker.table(pooled.measured([run]))
    assert comparison.worker.tolist() == [1, 1, 2, 2] and comparison.method.tolist() == ["plain", "sps"] * 2
    assert comparison.tokens_per_s.tolist() == [4, 8, 2, 2] and comparison.documents.tolist() == [4] * 4
    assert comparison[comparison.method == "sps"].speedup_decode.tolist() == [2, 1]
    assert comparison.host.tolist() == ["node1", "node1", "node2", "node2"]
    said = output("compare", run.folder, "--by", "worker")
    assert "node2" in said and "GPU-1" in said and "2.00 [2.00, 2.00]" in said
    assert json.loads(output("compare", run.folder, "--by", "worker", "--format", "json"))[1]["speedup_decode"] == 2


def test_a_worker_is_held_against_its_own_texts_only(tmp_path):
    """All of the baseline's texts are of worker 1: there is no speedup for worker 2, as for merged methods."""
    rows = Rows()
    for doc in range(8):
        for name, shapes, worker in (("plain", SINGLE, 1), ("sps", CHAIN, halves(doc))):
            who = {"host": f"node{worker}", "device": f"GPU-{worker}", "worker": worker, "attempt": 1}
            rows.add(name, doc, 1.0 if name == "plain" else 0.5, shapes, **who)
    rows.scores += scores("plain", [1] * 8) + scores("sps", [1] * 8)
    table = by_worker.table(pooled.measured([rows.run(tmp_path / "a")])).set_index(["method", "worker"])
    assert table.speedup_decode["sps", 1] == 2 and math.isnan(table.speedup_decode["sps", 2])


def test_workers_of_unlike_speed_are_named(tmp_path):
    (line,) = time_warnings.uneven(pooled.measured([run_of(tmp_path / "a", halves)]))
    assert line == "one: plain ran at 2 to 4 tokens/s in these workers: compare speedups, not tokens/s"


def joined(run, *cpus):
    """The same run, as of two shards of four documents on these processors."""
    parts = [
        {"number": n, "of": 2, "first": 4 * n - 4, "stop": 4 * n, "environment": ENVIRONMENT | {"cpu": cpu}}
        for n, cpu in enumerate(cpus, 1)
    ]
    return change_manifest(run.folder, joined=parts, environment=ENVIRONMENT | {"cpu": None})


def test_tokens_a_second_of_unlike_machines_are_not_pooled(tmp_path):
    speeds = ["tokens_per_s", "tokens_per_s_mean", "tokens_per_s_e2e", "tokens_per_s_e2e_mean", "tokens_per_s_batch"]
    run = joined(run_of(tmp_path / "a", halves, batched=0.5), "abacus", "slide rule")
    measured = pooled.measured([run])
    summed = compare.summary(measured)
    assert summed[speeds].isna().all(axis=None)
    assert summed.speedup_decode.iloc[1] == pytest.approx(1.2) and summed.tau.notna().all()
    (line,) = time_warnings.unpooled(measured)
    assert line.startswith("one: machines of different cpu decoded it")
    assert by_worker.table(measured).tokens_per_s.tolist() == [4, 8, 2, 2]
    like = pooled.measured([joined(run_of(tmp_path / "b", halves, batched=0.5), "abacus", "abacus")])
    assert time_warnings.unpooled(like) == [] and compare.summary(like)[speeds].notna().all(axis=None)


def test_runs_of_unlike_machines_that_were_allowed_are_not_pooled(tmp_path):
    one = run_of(tmp_path / "a", lambda doc, repeat: 1)
    other = run_of(tmp_path / "b", lambda doc, repeat: 2, environment={"cpu": "slide rule"}, seed=1)
    summed = compare.summary(pooled.measured([one, other], ["cpu"]))
    assert summed.tokens_per_s.isna().all() and summed.speedup_decode.iloc[1] == pytest.approx(1.2)


def test_hardware_that_is_not_recorded_is_unlike_no_other():
    known, unknown = dict.fromkeys(workers.HARDWARE, "abacus"), dict.fromkeys(workers.HARDWARE)
    other = known | {workers.HARDWARE[0]: "slide rule"}

    def unlike(*machines):
        return workers.unlike(pd.DataFrame({"hardware": list(map(json.dumps, machines))}))

    assert unlike(known, unknown) == [] and unlike(known, unknown, other) == [workers.HARDWARE[0]]
