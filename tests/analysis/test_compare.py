"""Runs side by side: pooling, pairing, what may be compared, and what is said of it."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, t
from synthetic import CHAIN, SINGLE, Rows, Timed, change_manifest, rounds, sample, scores, timed_run, write_run

from specbench.analysis import compare, pooled, time_warnings
from specbench.base import files
from specbench.config import UserError
from specbench.report import comparison, notes
from specbench.report.words import sentences
from specbench.results import records
from specbench.results.stored import StoredRun


def simple(folder, *, decode=0.5, method="sps", tasks=("one",), right=(1, 0, 1, 1), **options):
    """Four documents a task: plain takes 1 s for 4 tokens, the method `decode` s for as many."""
    methods = {"plain": Timed(1.0, SINGLE, (1, 1, 1, 0)), method: Timed(decode, CHAIN, right)}
    return timed_run(folder, methods, tasks=tasks, **options)


def table(*runs, **options):
    return compare.summary(pooled.measured(runs, **options))


def row(result, **wanted):
    for name, value in wanted.items():
        result = result[result[name] == value]
    assert len(result) == 1
    return result.iloc[0]


def test_one_run(tmp_path):
    comparison = table(simple(tmp_path / "a"))
    assert comparison.method.tolist() == ["plain", "sps"]
    mine = row(comparison, method="sps")
    assert (mine.documents, mine.repeats, mine.errors, mine.baseline) == (4, 1, 0, "plain")
    assert (mine.accuracy, mine.accuracy_stderr, mine.accuracy_delta) == (0.75, 0.125, 0.0)
    assert (mine.accuracy_p, mine.accuracy_test) == (1.0, "mcnemar")  # one document better, one worse
    assert mine.speedup_decode == pytest.approx(2) and mine.speedup_decode_low == pytest.approx(2)
    # plain: 1.25 s for 5 tokens; sps: 0.75 s for 5 tokens
    assert mine.speedup_e2e == pytest.approx(1.25 / 0.75)
    assert math.isnan(mine.speedup_spread) and math.isnan(row(comparison, method="plain").accuracy_p)


def test_the_score_of_a_group_weighs_tasks_by_their_documents(tmp_path):
    """As lm-eval has it: 8 of 8 and 1 of 2 are 9 of 10. Without a group, or with others, tasks count alike."""
    right = {"one": [1] * 8, "two": [1, 0]}
    run = timed_run(
        tmp_path / "a",
        {"plain": Timed(1.0, SINGLE, {"one": [1] * 8, "two": [1, 1]}), "sps": Timed(0.5, CHAIN, right)},
        tasks=("one", "two"),
        documents={"one": 8, "two": 2},
    )
    plain = row(table(run), task="average", method="sps")
    assert (plain.accuracy, plain.accuracy_delta, plain.metric) == (0.75, -0.25, "mean of 2 tasks")
    plan = run.manifest["plan"]

    def grouped(*groups):
        lines = [{"task": task, "group": group} for task, group in zip(right, groups, strict=True)]
        return row(table(change_manifest(run.folder, plan=plan | {"tasks": lines})), task="average", method="sps")

    weighed = grouped("all", "all")
    assert (weighed.accuracy, weighed.accuracy_delta) == pytest.approx((0.9, -0.1))
    assert weighed.metric == "mean of 2 tasks, scores by documents as lm-eval's all"
    assert weighed.accuracy_stderr == pytest.approx(0.125 * math.hypot(0.8, 0.2))
    assert weighed.tau == plain.tau and weighed.speedup_decode == plain.speedup_decode
    assert grouped("all", "others").accuracy == grouped("all", None).accuracy == 0.75


def test_scores_have_intervals(tmp_path):
    """Wilson's for 3 of 4 right; without one right more, and one less, Bonett and Price's for a difference of 0."""
    comparison = table(simple(tmp_path / "a", tasks=("one", "two")))
    mine, mean = row(comparison, task="one", method="sps"), row(comparison, task="average", method="sps")
    low, high = binomtest(3, 4).proportion_ci(method="wilson")
    assert (mine.accuracy_low, mine.accuracy_high) == pytest.approx((low, high), abs=1e-6)
    reach = 1.96 * math.sqrt((2 + 2) / 6 / 6)
    assert (mine.accuracy_delta_low, mine.accuracy_delta_high) == pytest.approx((-reach, reach), abs=1e-4)
    # The mean of two equal tasks: half of the variance.
    expected = 0.75 - (0.75 - low) / math.sqrt(2), 0.75 + (high - 0.75) / math.sqrt(2)
    assert (mean.accuracy_low, mean.accuracy_high) == pytest.approx(expected, abs=1e-6)


def test_a_score_that_is_no_mean_of_its_documents_keeps_the_tasks_own_error(tmp_path):
    run = simple(tmp_path / "a")
    kept = pd.read_parquet(run.folder / "scores.parquet")
    kept.loc[kept.doc_id.isna(), "value"] = 0.5
    kept.to_parquet(run.folder / "scores.parquet")
    mine = row(table(StoredRun(run.folder)), method="sps")
    assert (mine.accuracy_low, mine.accuracy_high) == pytest.approx((0.5 - 1.96 * 0.125, 0.5 + 1.96 * 0.125), abs=1e-4)


def test_a_speedup_beyond_its_tokens_a_round_is_named(tmp_path):
    """sps commits 2 tokens a round and is 2.5 times as fast; against a baseline of several models it may be."""
    methods = {"vanilla": Timed(1.0, SINGLE), "sps": Timed(0.4, CHAIN), "fly": Timed(0.5, CHAIN)}
    run = timed_run(tmp_path / "a", methods, baseline="vanilla")
    measured_rows = pooled.measured([run])
    (line,) = (
        warning for warning in notes.warnings([run], compare.summary(measured_rows), measured_rows) if "τ" in warning
    )
    assert line.startswith("one, sps: a speedup of 2.50 is more than τ = 2.00 tokens a target round can give")
    other = timed_run(tmp_path / "b", {"plain": Timed(1.0, SINGLE), "sps": Timed(0.4, CHAIN)})
    assert notes.beyond_tau(table(other), [other]).empty


def test_such_a_speedup_has_no_verdict_wherever_a_run_is_shown(tmp_path, capsys):
    """At the end of `run`, in `show`, `compare` and the report; `fly` keeps its own."""
    methods = {
        "vanilla": Timed(lambda task, doc: 1 + doc / 50, SINGLE),
        "sps": Timed(lambda task, doc: 0.4 + doc / 90, CHAIN),
        "fly": Timed(lambda task, doc: 0.6 + doc / 90, CHAIN),
    }
    run = timed_run(tmp_path / "a", methods, documents=9, baseline="vanilla")
    held, stands = "no verdict on its speed on one (2.", "fly: faster than vanilla on one (1."
    for shown in (
        lambda: comparison.finish(run.folder),
        lambda: comparison.show(run.folder, "table"),
        lambda: comparison.compare([run.folder], "md"),
    ):
        shown()
        said = " ".join(capsys.readouterr().out.split())
        assert f"sps: {held}" in said and "sps: faster" not in said and stands in said, said
    comparison.report([run.folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert held in page and "sps: faster" not in page and stands in page


def test_baseline_comes_first_and_tasks_keep_their_order(tmp_path):
    comparison = table(simple(tmp_path / "a", tasks=("zeta", "alpha")))
    assert comparison[["task", "method"]].values.tolist() == [
        [task, method] for task in ("zeta", "alpha", "average") for method in ("plain", "sps")
    ]


def test_tau_has_an_interval_over_documents(tmp_path):
    """Twice 4 tokens in two rounds, once 3. Without a text τ is 7 / 4 or 8 / 4; 121 / 41 texts count."""
    made = Rows()
    for task in ("one", "two"):
        for doc, accepted in enumerate((1, 1, 0)):
            made.add("plain", doc, shapes=SINGLE, task=task)
            made.add("sps", doc, shapes=[(3, 1), (3, accepted)], task=task)
    comparison = table(made.run(tmp_path / "run"))
    mine = row(comparison, task="one", method="sps")
    error = 2 / 3 * math.log(8 / 7)
    factor = math.exp(t.ppf(0.975, 121 / 41 - 1) * error)
    assert (mine.tau, mine.tau_low, mine.tau_high) == pytest.approx((11 / 6, 11 / 6 / factor, 11 / 6 * factor))
    # The mean of two equal tasks: half of the variance, twice the degrees of freedom.
    factor = math.exp(t.ppf(0.975, 2 * (121 / 41 - 1)) * error / math.sqrt(2))
    mean = row(comparison, task="average", method="sps")
    assert (mine.tau, mean.tau_low, mean.tau_high) == pytest.approx((11 / 6, 11 / 6 / factor, 11 / 6 * factor))
    assert row(comparison, task="one", method="plain").tau_low == 1


def test_average_over_tasks(tmp_path):
    """Speedups 2 and 4, scores 0.75 and 0.25: their means, whatever the number of documents."""
    methods = {
        "plain": Timed(1.0, SINGLE, {"one": (1, 1), "two": (1, 0, 0, 0)}),
        "sps": Timed(lambda task, doc: 0.5 if task == "one" else 0.25, CHAIN, {"one": (0, 1), "two": (1, 0, 1, 0)}),
    }
    comparison = table(timed_run(tmp_path / "a", methods, tasks=("one", "two"), documents={"one": 2, "two": 4}))
    mean = row(comparison, task="average", method="sps")
    assert mean.speedup_decode == pytest.approx(3)
    assert (mean.accuracy, mean.documents) == (0.5, 6)
    assert mean.accuracy_stderr == pytest.approx(math.sqrt(2 * 0.125**2) / 2)
    assert mean.accuracy_delta == pytest.approx((-0.5 + 0.25) / 2)
    assert math.isnan(mean.accuracy_p)


def test_a_method_that_lacks_a_task_has_no_average(tmp_path):
    both = simple(tmp_path / "a", tasks=("one", "two"))
    comparison = table(both, simple(tmp_path / "b", method="fly"))
    assert comparison[comparison.task == "average"].method.tolist() == ["plain", "sps"]


def test_runs_of_one_method_are_pooled_as_repeats(tmp_path):
    """Per-token times 0.5 / 4 and 1.0 / 4 against 1.0 / 4 each: 2.0 / 1.5 together; 2 and 1 apart."""
    comparison = table(simple(tmp_path / "a"), simple(tmp_path / "b", decode=1.0, seed=1, right=(1, 1, 1, 1)))
    mine = row(comparison, method="sps")
    assert (mine.repeats, mine.documents) == (2, 4)
    assert mine.speedup_decode == pytest.approx(2 / 1.5)
    assert mine.speedup_spread == pytest.approx(np.std([2, 1], ddof=1))
    assert mine.accuracy == pytest.approx((0.75 + 1) / 2)
    assert mine.accuracy_spread == pytest.approx(np.std([0.75, 1], ddof=1))
    assert mine.accuracy_stderr == pytest.approx(np.std([1, 0.5, 1, 1], ddof=1) / 2)  # of the documents' means
    assert mine.accuracy_test == "permutation"


def test_a_method_is_set_against_the_baseline_of_its_own_run(tmp_path):
    """A run on a slow afternoon: both of its methods took twice as long."""
    slow = timed_run(tmp_path / "slow", {"plain": Timed(2.0, SINGLE, 3), "fly": Timed(1.0, CHAIN, 3)})
    comparison = table(simple(tmp_path / "a"), slow)
    assert row(comparison, method="fly").speedup_decode == pytest.approx(2)
    assert row(comparison, method="sps").speedup_decode == pytest.approx(2)


# Several baselines

SECONDS = {"plain": 1.0, "sps": 0.5, "pool": 2.0, "share": 1.6}  # for 4 tokens each


def mixed(folder, *, only=tuple(SECONDS), seconds=SECONDS, documents=4, baseline="plain", baselines=None, **options):
    """plain and sps, and two that pool models: share is set against pool, which is a baseline as plain is."""
    right = {"plain": 4, "sps": 3, "pool": 2, "share": 1}
    methods = {name: Timed(seconds[name], CHAIN if name in ("sps", "share") else SINGLE, right[name]) for name in only}
    own = {"pool": "pool", "share": "pool"} if baselines is None else baselines
    return timed_run(folder, methods, documents=documents, baseline=baseline, baselines=own, **options)


def test_each_method_is_set_against_its_own_baseline(tmp_path):
    comparison = table(mixed(tmp_path / "a"))
    assert comparison[["method", "baseline"]].values.tolist() == [
        ["plain", "plain"], ["sps", "plain"], ["pool", "pool"], ["share", "pool"],
    ]  # fmt: skip
    assert row(comparison, method="sps").speedup_decode == pytest.approx(2)
    assert row(comparison, method="share").speedup_decode == pytest.approx(2 / 1.6)  # not 1 / 1.6
    # with 0.25 s of prefill for 1 token: 2.25 s against 1.85 s
    assert row(comparison, method="share").speedup_e2e == pytest.approx(2.25 / 1.85)
    assert row(comparison, method="pool").speedup_decode == pytest.approx(1)
    assert row(comparison, method="sps").accuracy_delta == pytest.approx(-0.25)
    assert row(comparison, method="share").accuracy_delta == pytest.approx(-0.25)  # to plain: -0.75
    assert math.isnan(row(comparison, method="pool").accuracy_delta)


def test_methods_come_behind_their_baselines(tmp_path):
    run = mixed(
        tmp_path / "a",
        only=("share", "plain", "pool", "sps"),
        baseline="pool",
        baselines={"plain": "plain", "sps": "plain"},
    )
    assert pooled.measured([run]).methods == ["pool", "share", "plain", "sps"]


def test_one_baseline_can_be_chosen_for_all(tmp_path):
    measured_rows = pooled.measured([mixed(tmp_path / "a")])
    rows = compare.summary(measured_rows.against("plain"))
    assert set(rows.baseline) == {"plain"}
    assert row(rows, method="share").speedup_decode == pytest.approx(1 / 1.6)
    none = compare.summary(measured_rows.against(None))
    assert set(none.baseline) == {""} and none.speedup_decode.isna().all()


def test_runs_with_other_baselines_compare_where_no_method_has_two(tmp_path):
    """Each run has one of the families; as a whole their baselines differ."""
    first = mixed(tmp_path / "a", only=("plain", "sps"), baselines={})
    second = mixed(tmp_path / "b", only=("pool", "share"), baseline="pool", baselines={}, seed=1)
    comparison = table(first, second)
    assert row(comparison, method="sps").speedup_decode == pytest.approx(2)
    assert row(comparison, method="share").speedup_decode == pytest.approx(2 / 1.6)
    third = mixed(tmp_path / "c", baselines={}, seed=2)  # all against plain
    with pytest.raises(
        UserError, match=r"baseline \(pool: pool / plain, share: pool / plain\).*--allow-mismatch baseline"
    ):
        table(first, second, third)
    rows = table(first, second, third, allowed=["baseline"])
    assert row(rows, method="share").baseline == "pool"  # of the first run that has it


def test_every_run_with_another_baseline_than_the_first_is_named(tmp_path):
    """The third agrees with the second; what counts is the first that had the method."""
    first = mixed(tmp_path / "a", baselines={})
    others = [mixed(tmp_path / name, baselines={"share": "pool"}, seed=seed) for seed, name in enumerate("bc", 1)]
    lines = pooled.measured([first, *others], allowed=["baseline"]).mismatches
    values = [line for line in lines if "share: plain / pool" in line]
    assert len(values) == 2 and "/ b:" in values[0] and "/ c:" in values[1]


def test_what_is_said_names_the_baseline_of_each(tmp_path):
    comparison = table(mixed(tmp_path / "a", documents=8))
    first, second = sentences(comparison)[:2]
    assert first.startswith("sps: faster than plain on one (2.00 ×)")
    assert second.startswith("share: faster than pool on one (1.25 ×)")
    *_, speed, facts = notes.legend(comparison)
    assert "per token of the baseline over" in speed
    assert facts == "baselines: plain of sps; pool of share"
    (_, alone) = notes.legend(table(simple(tmp_path / "b")))
    assert "per token of plain over" in alone


def test_the_drift_of_each_baseline_is_told(tmp_path):
    """pool takes half as long again in the second half of the documents."""
    run = mixed(tmp_path / "a", documents=20)
    frame = pd.read_parquet(run.folder / "samples.parquet")
    late = (frame.method == "pool") & (frame.doc_id >= 10)
    frame.assign(decode_seconds=frame.decode_seconds.where(~late, 3.0)).to_parquet(run.folder / "samples.parquet")
    measured_rows = pooled.measured([run])
    rows = compare.summary(measured_rows)
    assert row(rows, method="sps").drift == 0 and row(rows, method="share").drift == pytest.approx(0.5)
    (line,) = (warning for warning in notes.warnings([run], rows, measured_rows) if "drift" in warning)
    assert line == "one: pool's time per token drifted by +50% within a run; repeat it"


def test_the_drift_of_an_average_is_the_largest_with_its_sign(tmp_path):
    """plain takes half the time in the second half of one task, and a fifth more in that of the other."""
    late = {"one": 0.5, "two": 1.2}
    methods = {"plain": Timed(lambda task, doc: 1.0 if doc < 6 else late[task], SINGLE), "sps": Timed(0.5)}
    comparison = table(timed_run(tmp_path / "a", methods, tasks=("one", "two"), documents=12))
    drifts = {task: row(comparison, task=task, method="sps").drift for task in ("one", "two", "average")}
    assert drifts == pytest.approx({"one": -0.5, "two": 0.2, "average": -0.5})


def test_the_drift_of_pooled_runs_is_the_largest_with_its_sign(tmp_path):
    runs = []
    for seed, late in enumerate((0.5, 1.2)):
        plain = Timed(lambda task, doc, late=late: 1.0 if doc < 6 else late, SINGLE)
        runs.append(timed_run(tmp_path / str(seed), {"plain": plain, "sps": Timed(0.5)}, documents=12, seed=seed))
    assert row(table(*runs), method="sps").drift == pytest.approx(-0.5)


def test_every_baseline_that_ran_at_other_speeds_is_named(tmp_path):
    slow = SECONDS | {"pool": 4.0}
    one, other = mixed(tmp_path / "a"), mixed(tmp_path / "b", seconds=slow, seed=1)
    (line,) = time_warnings.uneven(pooled.measured([one, other]))
    assert line == "one: pool ran at 1 to 2 tokens/s in these runs: compare speedups, not tokens/s"


def test_namesakes_with_other_settings_are_told_apart(tmp_path):
    one = simple(tmp_path / "a", settings={"sps": {"gamma": 4, "depth": 1}})
    other = simple(tmp_path / "b", settings={"sps": {"gamma": 8, "depth": 1}})
    assert set(table(one, other).method) == {"plain", "sps gamma=4", "sps gamma=8"}


def test_samplings_are_kept_apart(tmp_path):
    comparison = table(simple(tmp_path / "a"), simple(tmp_path / "b", decode=1.0, temperature=0.7, top_p=0.9))
    assert row(comparison, sampling="greedy", method="sps").speedup_decode == pytest.approx(2)
    assert row(comparison, sampling="T=0.7 top-p=0.9", method="sps").speedup_decode == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"environment": {"cpu": "slide rule"}}, "cpu"),
        ({"environment": {"draft_device": "abacus"}}, "draft_device"),
        ({"environment": {"versions": {"torch": "2"}}}, "versions"),
        ({"prompts": {("one", 2): "another prompt"}}, "prompts"),
        ({"baseline": "sps"}, "baseline"),
    ],
)
def test_unlike_runs_are_refused_unless_allowed(tmp_path, options, field):
    one, other = simple(tmp_path / "a"), simple(tmp_path / "b", **options)
    with pytest.raises(UserError, match=f"--allow-mismatch {field}"):
        table(one, other)
    mismatches = pooled.measured([one, other], allowed=[field]).mismatches
    assert len(mismatches) == 1 and mismatches[0].startswith("MISMATCH") and field in mismatches[0]


def test_other_documents_are_refused(tmp_path):
    short = simple(tmp_path / "b")
    manifest = short.manifest
    manifest["requests"] = manifest["requests"][:2]
    files.write_json(tmp_path / "b" / "manifest.json", manifest)
    with pytest.raises(UserError, match=r"documents \(one: 4 / 2\)"):
        table(simple(tmp_path / "a"), StoredRun(tmp_path / "b"))


def test_runs_of_other_tasks_compare(tmp_path):
    comparison = table(simple(tmp_path / "a", tasks=("one",)), simple(tmp_path / "b", tasks=("two",)))
    assert comparison.task.drop_duplicates().tolist() == ["one", "two", "average"]


def test_what_a_run_does_not_tell_is_said(tmp_path):
    run = simple(tmp_path / "a", environment={"cpu": None})
    assert "cpu" in pooled.measured([simple(tmp_path / "b"), run]).mismatches[0]


def test_unfinished_and_foreign_folders_are_refused(tmp_path):
    run = simple(tmp_path / "a")
    (tmp_path / "a" / "scores.parquet").unlink()
    with pytest.raises(UserError, match="--resume"):
        table(run)
    with pytest.raises(UserError, match="manifest"):
        table(StoredRun(tmp_path))
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        table(StoredRun(tmp_path))


def joined(run, *stops):
    """The same run as of shards that end before these documents."""
    path = run.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    starts = [0, *stops[:-1]]
    manifest["joined"] = [
        {"number": number, "of": len(stops), "first": first, "stop": stop}
        for number, (first, stop) in enumerate(zip(starts, stops, strict=True), 1)
    ]
    path.write_text(json.dumps(manifest))
    return StoredRun(run.folder)


def test_shards_at_other_speeds_are_named_and_speedups_are_paired_within_them(tmp_path):
    """The worker of documents 4 to 7 is half as fast; within each, both methods are as even as can be."""
    slow = {True: 1.0, False: 2.0}
    methods = {
        "plain": Timed(lambda task, doc: slow[doc < 4], SINGLE),
        "sps": Timed(lambda task, doc: slow[doc < 4] / (2 if doc < 4 else 1)),
    }
    run = joined(timed_run(tmp_path / "a", methods, documents=8), 4, 8)
    (line,) = time_warnings.uneven(pooled.measured([run]))
    assert line == "one: plain ran at 2 to 4 tokens/s in these workers: compare speedups, not tokens/s"
    result = row(table(run), method="sps")
    assert result.speedup_decode == pytest.approx(12 / 10)
    assert (result.speedup_decode_low, result.speedup_decode_high) == pytest.approx((1.2, 1.2))
    whole = row(table(timed_run(tmp_path / "b", methods, documents=8)), method="sps")
    assert whole.speedup_decode == pytest.approx(1.2) and whole.speedup_decode_low < 1.1


def test_a_text_that_was_held_up_is_named(tmp_path):
    """Document 3 of sps took 9 s where the others took 0.5 s; plain was even."""
    methods = {"plain": Timed(1.0, SINGLE), "sps": Timed(lambda task, doc: 9.0 if doc == 3 else 0.5)}
    (line,) = time_warnings.stalled(pooled.measured([timed_run(tmp_path / "a", methods)]))
    assert line.startswith("one, sps: 1 of 4 texts took over 5 times the median per token, 86% of the time")
    assert time_warnings.stalled(pooled.measured([simple(tmp_path / "b")])) == []


def test_runs_at_other_speeds_are_named(tmp_path):
    run = timed_run(tmp_path / "slow", {"plain": Timed(2.0, SINGLE, 3)})
    (line,) = time_warnings.uneven(pooled.measured([simple(tmp_path / "a"), run]))
    assert line == "one: plain ran at 2 to 4 tokens/s in these runs: compare speedups, not tokens/s"
    assert time_warnings.uneven(pooled.measured([simple(tmp_path / "b"), simple(tmp_path / "c")])) == []


@pytest.mark.parametrize("content", ["{}", "[]", '{"plan": 1}'])
def test_foreign_manifests_are_refused(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UserError, match="not a manifest of a run"):
        table(StoredRun(tmp_path))


def test_damaged_files_are_refused(tmp_path):
    run = simple(tmp_path / "a")
    manifest = json.loads((run.folder / "manifest.json").read_text())
    for name in ("rounds", "samples", "scores"):
        kept = (run.folder / f"{name}.parquet").read_bytes()
        (run.folder / f"{name}.parquet").write_bytes(kept[: len(kept) // 2])
        with pytest.raises(UserError, match=f"{name}.parquet is damaged"):
            StoredRun(run.folder).scores()
        (run.folder / f"{name}.parquet").unlink()
        with pytest.raises(UserError, match="--resume"):
            StoredRun(run.folder).scores()
        (run.folder / f"{name}.parquet").write_bytes(kept)
    for change, message in (({"schema": 99}, "later version"), ({"plan": {"suite": 3}}, "manifest.json")):
        files.write_json(run.folder / "manifest.json", manifest | change)
        with pytest.raises(UserError, match=message):
            table(StoredRun(run.folder))


def test_an_unknown_field_cannot_be_allowed(tmp_path):
    with pytest.raises(UserError, match="no such field"):
        pooled.measured([simple(tmp_path / "a")], allowed=["bananas"])


def test_failed_documents_are_counted_and_left_out(tmp_path):
    samples = [sample("plain", 0), sample("plain", 1, 100.0), sample("sps", 0, 0.5)]
    samples += [sample("sps", 1, finish="error", prefill=None) | {"decode_seconds": None}]
    all_rounds = [step for s in samples if s["finish"] != "error" for step in rounds(s, *[(0, 0)] * 4)]
    run = StoredRun(write_run(tmp_path / "a", samples, all_rounds, scores("plain", (1, 1)) + scores("sps", (1,))))
    mine = row(table(run), method="sps")
    assert (mine.errors, mine.documents, mine.speedup_decode) == (1, 1, 2)  # plain's 100 s do not count
    assert math.isnan(mine.speedup_decode_low)  # one document has no interval


def test_a_run_of_nothing_but_failures_has_a_table(tmp_path):
    samples = [sample(name, 0, finish="error", prefill=None) | {"decode_seconds": None} for name in ("plain", "sps")]
    run = StoredRun(write_run(tmp_path / "a", samples, [], []))
    comparison = table(run)
    assert comparison.errors.tolist() == [1, 1] and comparison.documents.tolist() == [0, 0]
    assert comparison[["tau", "accuracy", "speedup_decode"]].isna().all(axis=None)


def test_depths(tmp_path):
    result = compare.depth_table(pooled.measured([simple(tmp_path / "a")], with_depths=True))
    assert result[["method", "depth", "cond_accept", "tested"]].values.tolist() == [
        ["sps", 1, 1.0, 8],
        ["sps", 2, 0.0, 8],
        ["sps", 3, pytest.approx(math.nan, nan_ok=True), 0],
    ]


def test_stored_summary_equals_the_recomputed_one(tmp_path):
    run = simple(tmp_path / "a", tasks=("one", "two"))
    comparison = table(run)
    records.write_frame(tmp_path / "s.parquet", comparison)
    back = records.read_frame(tmp_path / "s.parquet")
    pd.testing.assert_frame_equal(back, comparison, check_dtype=False)
    assert json.loads(comparison.to_json(orient="records"))[0]["method"] == "plain"
