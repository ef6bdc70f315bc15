"""Frontiers of two families: hand-worked curves, one that crosses, resamples by a plain loop, the oracle's gain."""

import io
import json
import math

import numpy as np
import pandas as pd
import pytest
from screens import call, rendered
from synthetic import Rows, rounds, scores

from specbench.analysis.acceptance import POOLED
from specbench.analysis.frontier import families, frontier, interpolate, sentence
from specbench.config import MethodSpec, UserError
from specbench.report.views.frontier import view

SPS = {2: (50, 20), 4: (30, 60), 8: (20, 120)}  # gamma: forwards and discarded tokens of 100 committed ones
PREDICTED = {0.3: (40, 30), 0.7: (22, 130), 0.9: (10, 200)}
SETTINGS = {f"sps[gamma={g}]": {"gamma": g} for g in SPS}
SETTINGS |= {f"specdecpp[threshold={t}]": {"threshold": t} for t in PREDICTED}
CURVES = {name: SPS.get(s.get("gamma"), PREDICTED.get(s.get("threshold"))) for name, s in SETTINGS.items()}


def one_round(forwards, discarded):
    """Makes one round of a sample: of 100 committed tokens, so many forwards and discarded drafts."""

    def made(row):
        prefill, one = rounds(row, (60, 60 - discarded))
        return [prefill, one | {"committed": 100, "target_forwards": forwards}]

    return made


def made(folder, curves, documents=2, tasks=("one",), settings=None, vary=lambda name, task, doc: (1.0, 0, 0), **plan):
    """A run of methods at (forwards, discarded); `vary` gives each document seconds, more forwards, more discarded."""
    rows = Rows()
    for task in tasks:
        for doc in range(documents):
            rows.add("plain", doc, 1.0, [(0, 0)], task=task)
            for name, (forwards, discarded) in curves.items():
                seconds, f, d = vary(name, task, doc)
                rows.add(name, doc, seconds, one_round(forwards + f, discarded + d), task=task)
    return rows.run(folder, settings=SETTINGS if settings is None else settings, **plan)


def row_of(result, task, method):
    (row,) = result.compared[(result.compared.task == task) & (result.compared.method == method)].to_dict("records")
    return row


def test_a_frontier_that_crosses(tmp_path):
    """At v = 0.4 sps discards 0.4, half way between 0.6 and 0.2; at 0.22 it is 0.6 + 0.8 · 0.6 = 1.08; 0.1 is not."""
    result = frontier(made(tmp_path / "run", CURVES), "specdecpp", "sps")
    points = result.points.set_index("method")
    assert points.loc["sps[gamma=4]", ["verification", "discard", "setting"]].tolist() == [0.3, 0.6, 4]
    assert list(result.against.values) == list(SETTINGS)[:3]
    expected = {"0.3": (0.4, 0.3, 0.4, -0.1, "holds"), "0.7": (0.22, 1.3, 1.08, 0.22, "fails")}
    for threshold, (v, d, other, difference, verdict) in expected.items():
        row = row_of(result, "one", f"specdecpp[threshold={threshold}]")
        assert [row[name] for name in ("verification", "discard", "other")] == pytest.approx([v, d, other])
        assert [row[name] for name in ("difference", "low", "high")] == pytest.approx([difference] * 3)  # all alike
        assert (row["verdict"], row["comparable"]) == (verdict, 1)
    beyond = row_of(result, "one", "specdecpp[threshold=0.9]")
    assert math.isnan(beyond["difference"]) and beyond["verdict"] == "not comparable"
    text = sentence(result, "one")
    assert "at every verification rate? fails (holds at 1, fails at 1 of 2; 1 more not comparable)" in text


def test_a_frontier_that_is_better_everywhere(tmp_path):
    curves = CURVES | {"specdecpp[threshold=0.7]": (22, 90), "specdecpp[threshold=0.9]": (20, 100)}
    points = frontier(made(tmp_path / "run", curves), "specdecpp", "sps")
    assert points.compared.verdict.tolist() == ["holds"] * 3
    assert row_of(points, "one", "specdecpp[threshold=0.9]")["other"] == pytest.approx(1.2)  # the curve's very end
    assert sentence(points, "one").endswith("rate? holds (holds at 3 of 3)")


def noisy(seed):
    """A document is as hard for all methods: the differences between them are much surer than their rates."""
    rng = np.random.default_rng(seed)
    hard = {(task, doc): int(rng.integers(0, 40)) for task in ("one", "two") for doc in range(15)}

    def vary(name, task, doc):
        more = hard[task, doc]
        return 1 + more / 40 + rng.random() / 4, more // 2, more + int(rng.integers(-8, 9))

    return vary


def loop(curves, run, task, name, resamples, rng):
    """Differences at one variant in resamples: documents drawn within tasks, both curves put together again."""
    table = run.rounds().to_table().to_pandas()
    table = table[(table["round"] > 0) & (table.method != "plain")].assign(x=lambda one: one.drafted - one.accepted)
    if task != POOLED:
        table = table[table.task == task]
    sums = table.groupby(["task", "doc_id", "method"])[["x", "committed", "target_forwards"]].sum().unstack()
    by_task = [own for _, own in sums.groupby(level="task")]
    for _ in range(resamples):
        again = pd.concat([own.iloc[rng.integers(0, len(own), len(own))] for own in by_task]).sum()
        rates = {
            m: (again["target_forwards", m] / again["committed", m], again["x", m] / again["committed", m])
            for m in curves
        }
        x, y = zip(*sorted(rates[m] for m in curves if m.startswith("sps")), strict=True)
        v, d = rates[name]
        yield d - np.interp(v, x, y, left=np.nan, right=np.nan)


@pytest.mark.long
@pytest.mark.parametrize("task", ["one", POOLED])
def test_intervals_are_those_of_resampled_documents(tmp_path, task):
    run = made(tmp_path / "run", CURVES, 15, ("one", "two"), vary=noisy(1))
    points = frontier(run, "specdecpp", "sps")
    assert points.documents == {"one": 15, "two": 15, POOLED: 30}
    for name in ("specdecpp[threshold=0.3]", "specdecpp[threshold=0.7]"):
        row = row_of(points, task, name)
        drawn = np.array(list(loop(CURVES, run, task, name, 1500, np.random.default_rng(2))))
        low, high = np.nanquantile(drawn, [0.025, 0.975])
        assert (row["low"], row["high"]) == pytest.approx((low, high), abs=0.1 * (high - low))
        assert row["comparable"] == pytest.approx(np.mean(~np.isnan(drawn)), abs=0.03)
        assert row["low"] < row["difference"] < row["high"]


def test_pairing_makes_differences_sure(tmp_path):
    """Documents differ by far more than the families do."""
    run = made(tmp_path / "run", CURVES, 15, vary=noisy(3))
    row = row_of(frontier(run, "specdecpp", "sps"), "one", "specdecpp[threshold=0.3]")
    table = run.rounds().to_table().to_pandas()
    own = table[(table.method == "specdecpp[threshold=0.3]") & (table["round"] > 0)]
    spread = (own.drafted - own.accepted).std() / 100 / math.sqrt(len(own))
    assert row["high"] - row["low"] < 2 * spread


def test_a_verdict_needs_nearly_all_resamples(tmp_path):
    """The variant lies within the curve, but close to its end: in a part of the resamples it does not."""

    def vary(name, task, doc):
        return 1.0, 9 * (doc % 2) * name.startswith("spec"), 0

    curves = CURVES | {"specdecpp[threshold=0.9]": (17, 50)}
    points = frontier(made(tmp_path / "run", curves, 10, vary=vary), "specdecpp", "sps")
    row = row_of(points, "one", "specdecpp[threshold=0.9]")
    assert 0.5 < row["comparable"] < 0.95
    assert row["high"] < 0 and row["verdict"] == "undecided"
    assert f"undecided ({row['comparable']:.0%})" in rendered(view(points))


def test_interpolation():
    x, y = np.array([[3.0, 1, 2], [1, 2, 2], [2, 3, 2]]), np.array([[30.0, 1, 5], [10, 3, 7], [15, 4, 9]])
    assert interpolate(np.array([1.5, 2.5, 2.0]), x, y)[:2] == pytest.approx([12.5, 3.5])
    assert interpolate(np.array([1.0, 3.0, 2.0]), x, y)[:2] == pytest.approx([10, 4])
    assert 5 <= interpolate(np.array([1.0, 3.0, 2.0]), x, y)[2] <= 9  # all at one rate
    assert np.isnan(interpolate(np.array([0.9, 3.1, 2.1]), x, y)).all()


def test_only_documents_that_all_have(tmp_path):
    """One failed for a variant, one for the oracle, one only in a second repeat; what is left is one document."""
    made_rows = Rows()
    missing = {("sps[gamma=2]", 1, 0), ("oracle", 2, 0), ("specdecpp[threshold=0.3]", 0, 1)}
    names = {**CURVES, "oracle": (20, 0), "other": (20, 0)}
    for repeat in (0, 1):
        for doc in range(1 if repeat else 3):
            for name, (forwards, discarded) in names.items():
                if repeat and name == "other":
                    continue
                more = 0 if (doc, repeat) == (0, 0) else 30
                if (name, doc, repeat) in missing:
                    made_rows.add(name, doc, 1.0, lambda row: [], repeat=repeat, finish="error")
                else:
                    made_rows.add(name, doc, 1.0, one_round(forwards + more, discarded), repeat=repeat)
    made_rows.scores += [row for name in names for row in scores(name, (1, 1, 1))]
    run = made_rows.run(tmp_path / "run", settings=SETTINGS, baseline=None)
    points = frontier(run, "specdecpp", "sps")
    assert points.documents == {"one": 1}
    assert row_of(points, "one", "specdecpp[threshold=0.3]")["verification"] == 0.4
    # A single document has no interval, and so no verdict.
    assert row_of(points, "one", "specdecpp[threshold=0.3]")["verdict"] == "undecided"


def times(seconds):
    return lambda name, task, doc: (seconds.get(name, 9.0), 0, 0)


def test_share_of_the_oracles_gain(tmp_path):
    """Per document: the best fixed length takes 5 s, the oracle 3 s, the variants 4, 3.5 and 6 s."""
    seconds = dict(zip(CURVES, (7.0, 5.0, 6.0, 4.0, 3.5, 6.0), strict=True)) | {"oracle": 3.0}
    run = made(tmp_path / "run", {**CURVES, "oracle": (20, 0)}, vary=times(seconds))
    points = frontier(run, "specdecpp", "sps")
    assert (points.oracle, points.best, points.best_given) == ("oracle", "sps[gamma=4]", False)
    assert points.gains[["share", "low", "high"]].values.ravel().tolist() == pytest.approx(
        [0.5] * 3 + [0.75] * 3 + [-0.5] * 3
    )
    assert "the fastest sps, chosen on these very documents" in " ".join(rendered(view(points)).split())
    named = frontier(run, "specdecpp", "sps", best="sps[gamma=2]")
    assert named.best_given and named.gains.share.tolist() == pytest.approx([0.75, 0.875, 0.25])
    assert "sps[gamma=2] (as requested)" in " ".join(rendered(view(named)).split())


def test_interval_of_the_share(tmp_path):
    """Two documents: the oracle gains 2 s and 4 s of them, the variant 1 s and 3 s: 1/2 to 3/4, 4/6 together."""
    seconds = {"sps[gamma=4]": (5, 9), "oracle": (3, 5), "specdecpp[threshold=0.3]": (4, 6)}
    vary = lambda name, task, doc: (seconds.get(name, (20, 20))[doc], 0, 0)  # noqa: E731
    points = frontier(made(tmp_path / "run", {**CURVES, "oracle": (20, 0)}, vary=vary), "specdecpp", "sps")
    row = points.gains.set_index("method").loc["specdecpp[threshold=0.3]"]
    assert row[["share", "low", "high"]].tolist() == pytest.approx([4 / 6, 1 / 2, 3 / 4])


def test_an_oracle_that_gains_nothing(tmp_path):
    seconds = {"sps[gamma=4]": 5.0, "oracle": 6.0}
    points = frontier(made(tmp_path / "run", {**CURVES, "oracle": (20, 0)}, vary=times(seconds)), "specdecpp", "sps")
    assert points.gains[["share", "low", "high"]].isna().all(axis=None)
    without = frontier(made(tmp_path / "without", CURVES), "specdecpp", "sps")
    assert without.oracle is None and without.gains.empty
    assert "this run has no oracle" in rendered(view(without))


def spec(name, **values):
    return MethodSpec(name=name, method=name.partition("[")[0], settings={k: {"value": v} for k, v in values.items()})


def groups(*specs):
    return [
        (family.name, family.setting, list(family.values.values())) for family in families({s.name: s for s in specs})
    ]


def test_families():
    gammas = [spec(f"sps[gamma={g}]", gamma=g, eos=True) for g in (10, 2, 4)]
    assert groups(*gammas) == [("sps", "gamma", [2, 4, 10])]
    assert groups(spec("sps", gamma=6, eos=True), *gammas, spec("csd", gamma=1)) == [
        ("sps", "gamma", [2, 4, 6, 10]),
        ("csd", None, [None]),
    ]
    assert groups(spec("csd", gamma=1), spec("csd-ocm", gamma=2)) == [("csd", None, [None]), ("csd-ocm", None, [None])]
    both = [spec(f"s[{a},{b}]", a=a, b=b) for a, b in ((1, 1), (2, 1), (3, 2), (1, 2), (1, 3))]
    assert groups(*both) == [("s, b=1", "a", [1, 2]), ("s, b=2", "a", [1, 3]), ("s[1,3]", None, [1])]
    assert groups(spec("s[m=x]", m="x"), spec("s[m=a]", m="a")) == [("s", "m", ["a", "x"])]
    same = {"s memory hash=1": spec("s", a=1), "s memory hash=2": spec("s", a=1)}
    assert [family.name for family in families(same)] == list(same)


def test_what_cannot_be_compared(tmp_path):
    run = made(tmp_path / "run", CURVES)
    with pytest.raises(UserError, match=r"no method csd; it has plain, sps, specdecpp"):
        frontier(run, "csd", "sps")
    with pytest.raises(UserError, match=r"no method sps\[gamma=5\] \(--best\)"):
        frontier(run, "specdecpp", "sps", best="sps[gamma=5]")
    with pytest.raises(
        UserError, match=r"needs variants of plain .* are one \(plain\); `specbench sweep --method plain"
    ):
        frontier(run, "specdecpp", "plain")
    several = {"sps[a]": {"gamma": 1, "k": 1}, "sps[b]": {"gamma": 2, "k": 1}, "sps[c]": {"gamma": 3, "k": 2}}
    two = made(tmp_path / "two", dict.fromkeys(several, (20, 20)) | CURVES, settings=several | SETTINGS)
    with pytest.raises(UserError, match="differ in several"):
        frontier(two, "specdecpp", "sps")
    alone = Rows()
    for number, (name, at) in enumerate(CURVES.items()):
        alone.add(name, number, 1.0, one_round(*at))
    run = alone.run(tmp_path / "alone", settings=SETTINGS, baseline=None)
    with pytest.raises(UserError, match=r"no document of .* was decoded by all of"):
        frontier(run, "specdecpp", "sps")


def test_the_view(tmp_path):
    text = rendered(view(frontier(made(tmp_path / "run", {**CURVES, "oracle": (20, 0)}), "specdecpp", "sps")))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert max(map(len, text.splitlines())) <= 80
    assert "one: 2 documents that all of these methods decoded" in lines
    assert "sps[gamma=4] 4 0.300 0.600" in lines
    assert "0.3 0.400 0.300 0.400 -0.100 [-0.100, -0.100] holds" in lines
    assert "0.7 0.220 1.300 1.080 +0.220 [+0.220, +0.220] fails" in lines
    assert "0.9 0.100 2.000 - - not comparable" in lines


def test_the_command(tmp_path):
    folder = made(tmp_path / "run", {**CURVES, "oracle": (20, 0)}).folder
    result = call("analyze", "frontier", str(folder), "--format", "json")
    facts = json.loads(result.stdout)
    assert [row["verdict"] for row in facts["compared"]] == ["holds", "fails", "not comparable"]
    assert facts["compared"][2]["difference"] is None
    assert facts["against"]["setting"] == "gamma" and facts["sentences"]["one"].startswith(
        "one: does specdecpp discard less"
    )
    words = ["analyze", "frontier", str(folder), "--method", "sps", "--against", "specdecpp", "--best", "oracle"]
    rows = pd.read_csv(io.StringIO(call(*words, "--format", "csv").stdout))
    assert rows[(rows.table == "compared") & (rows.column == "method")].value.tolist() == list(SETTINGS)[:3]
    assert rows[rows.column == "best"].value.tolist() == ["oracle"]
    missing = call("analyze", "frontier", str(folder), "--method", "csd")
    assert missing.exit_code == 2 and len(missing.stderr.strip().splitlines()) == 1
