"""The leaderboard's groups, verdicts and leaders, of runs whose figures can be worked out by hand."""

import math
import shutil

import pytest
from synthetic import CHAIN, SINGLE, Timed, change_manifest, timed_run

from specbench.config import UserError
from specbench_extras.leaderboard.analysis import groups, history

DOCUMENTS = 9


def about(seconds):
    """Seconds of a document that are so many on average over DOCUMENTS."""
    return lambda task, doc: seconds + 0.02 * (doc % 3 - 1)


METHODS = {"vanilla": Timed(1.0, SINGLE), "sps": Timed(about(0.625), CHAIN)}


def made(folder, methods=METHODS, *, started="2026-01-01T12:00:00+0000", documents=DOCUMENTS, environment=None, **plan):
    run = timed_run(
        folder,
        methods,
        documents=documents,
        environment={"git": "abc"} | (environment or {}),
        baseline="vanilla",
        **plan,
    )
    return change_manifest(run.folder, started=started).folder


def rows(*folders):
    (group,) = groups(folders)
    return group.rows.set_index("method")


def test_runs_alike_are_one_group_and_pooled(tmp_path):
    """Nine documents at 1 s and at 0.625 s on average, twice."""
    one, two = made(tmp_path / "one"), made(tmp_path / "two", started="2026-01-02T12:00:00+0000")
    table = rows(one, two)
    assert table.speedup["sps"] == pytest.approx(1 / 0.625)
    assert (table.documents["sps"], table.compared["sps"], table.run["sps"]) == (DOCUMENTS, DOCUMENTS, "one, two")
    assert table.speed_verdict.to_dict() == {"sps": "faster", "vanilla": ""}
    conditions = table.loc["sps", ["machine", "dtype", "runtime", "batch", "load", "commit"]].tolist()
    assert conditions == ["2 cores of abacus", "float32", "eager", "1", "0.1", "abc"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"threads": 1}, "threads (2 / 1)"),
        ({"cpu": "sand glass"}, "cpu (abacus / sand glass)"),
        ({"cpu": None}, "cpu (not recorded)"),
    ],
)
def test_speeds_of_other_machines_do_not_meet(tmp_path, environment, said):
    one, two = made(tmp_path / "one"), made(tmp_path / "two", environment=environment)
    first, second = groups([one, two])
    assert [run.name for run in first.runs] == ["one"] and [run.name for run in second.runs] == ["two"]
    assert (first.name, first.differs, second.name, second.differs) == ("A", "", "B", said)


def test_a_run_joins_the_group_all_of_whose_runs_it_fits(tmp_path):
    """The prompts of `two` are other ones than those of `three`, which compares with `one`."""
    one = made(tmp_path / "one")
    two = made(tmp_path / "two", {name: Timed(1.0, SINGLE) for name in METHODS}, tasks=("two",))
    three = made(tmp_path / "three", tasks=("one", "two"), prompts={("two", 0): "another"})
    assert [[run.name for run in group.runs] for group in groups([one, two, three])] == [["one", "two"], ["three"]]


def test_too_few_documents_get_no_verdict(tmp_path):
    table = rows(made(tmp_path / "run", documents=7))
    assert table.speed_verdict["sps"] == "too few documents" and not table.leads.any()
    assert table.speedup_low["sps"] < table.speedup["sps"] and table.compared["sps"] == 7


def test_those_lead_that_are_not_significantly_slower(tmp_path):
    """`close` takes 0.5 % longer than `sps`, which noise of 2 % hides; `wrong` is faster, and solves nothing."""
    methods = METHODS | {
        "close": Timed(lambda task, doc: 0.628 + 0.02 * ((doc + 1) % 3 - 1), CHAIN),
        "slow": Timed(about(0.8), CHAIN),
        "wrong": Timed(about(0.55), CHAIN, 0),
    }
    table = rows(made(tmp_path / "run", methods))
    assert table.leads.to_dict() == {"wrong": False, "sps": True, "close": True, "slow": False, "vanilla": False}
    assert list(table.index) == ["wrong", "sps", "close", "slow", "vanilla"]  # by speedup
    assert (table.score_verdict["wrong"], table.speed_verdict["slow"]) == ("lower", "faster")


@pytest.mark.parametrize(("seconds", "leads"), [(0.66, False), (0.627, True)])
def test_methods_of_two_runs_are_compared_by_their_intervals(tmp_path, seconds, leads):
    """A standard error of 0.9 % each: 5 % are four of the difference's, 0.3 % a quarter of one."""
    two = {"vanilla": Timed(1.0, SINGLE), "csd": Timed(about(seconds), CHAIN)}
    table = rows(made(tmp_path / "one"), made(tmp_path / "two", two, started="2026-01-02T12:00:00+0000"))
    assert table.leads.to_dict() == {"sps": True, "csd": leads, "vanilla": False}


def test_a_baseline_that_nothing_beats_leads(tmp_path):
    table = rows(made(tmp_path / "run", {"vanilla": Timed(1.0, SINGLE), "sps": Timed(about(1.25), CHAIN)}))
    assert table.leads.to_dict() == {"vanilla": True, "sps": False}
    assert table.speed_verdict["sps"] == "slower"


def test_a_speedup_above_tau_is_none(tmp_path):
    """CHAIN gives two tokens a round, and `sps` takes 0.4 of vanilla's time."""
    methods = METHODS | {"fast": Timed(about(0.4), CHAIN)}
    table = rows(made(tmp_path / "run", methods))
    assert math.isnan(table.speedup["fast"]) and math.isnan(table.speedup_high["fast"])
    assert table.speed_verdict["fast"] == "no verdict" and not table.leads["fast"] and table.leads["sps"]
    assert table.withheld["fast"] == "2.50 × is more than its τ of 2.00 can give"


def test_what_an_oracle_helps_does_not_lead(tmp_path):
    methods = METHODS | {"bound": Timed(about(0.55), CHAIN)}
    table = rows(made(tmp_path / "run", methods, settings={"bound": {"length": "oracle"}}))
    assert table.leads.to_dict() == {"bound": False, "sps": True, "vanilla": False}


def test_history_has_each_run_in_its_order(tmp_path):
    late = made(tmp_path / "late", started="2026-01-02T12:00:00+0000")
    early = made(tmp_path / "early", METHODS | {"sps": Timed(about(0.8), CHAIN)})
    table = history(groups([late, early]))
    of_sps = table[table.method == "sps"]
    assert of_sps.run.tolist() == ["early", "late"]
    assert of_sps.speedup.tolist() == pytest.approx([1 / 0.8, 1 / 0.625])


def test_what_is_no_finished_run_of_its_own_is_refused(tmp_path):
    one = made(tmp_path / "one")
    copy = shutil.copytree(one, tmp_path / "copy")
    with pytest.raises(UserError, match="is a copy of"):
        groups([one, copy])
    (copy / "scores.parquet").unlink()
    change_manifest(copy, started="2026-01-03T12:00:00+0000")
    with pytest.raises(UserError, match="is not a finished run"):
        groups([one, copy])
    with pytest.raises(UserError, match="is not a run folder"):
        groups([one, tmp_path])
    assert len(groups([one, one])[0].runs) == 1
