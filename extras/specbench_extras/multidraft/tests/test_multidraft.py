"""What several drafts would have had accepted: figures of a run against plain forwards, order, and bad input."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import oracle
import pandas as pd
import pytest
from screens import call

from specbench.config import UserError, load_method
from specbench.measure import loop
from specbench.measure.prompts import encode, load_tasks
from specbench.plan import resolve_plan
from specbench.report.finding import show
from specbench.results.stored import StoredRun
from specbench_extras.drafts.two_readings import texts_to_read
from specbench_extras.multidraft import study as multidraft
from specbench_extras.multidraft import transport
from specbench_extras.multidraft.study import ALL, count_disordered, first_level_kind, mean, multi_draft
from specbench_extras.multidraft.view import view

METHODS = ["sps", "mdsd", "mdsd-iid", "rsd"]
SETTINGS = ["sps.gamma=2", "mdsd.drafts=2", "mdsd.gamma=2", "mdsd-iid.drafts=4", "mdsd-iid.gamma=2", "rsd.width=2"]
SETTINGS += ["rsd.gamma=2"]


def decoded(folder, methods, **options) -> StoredRun:
    settings = [one for one in options.pop("settings", []) if one.partition(".")[0] in methods]
    plan = resolve_plan(methods, "smoke", "pocket", settings, "vanilla", 2, **options)
    loop.execute(plan, folder, lambda _: True)
    return StoredRun(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> StoredRun:
    folder = tmp_path_factory.mktemp("drafts") / "run"
    return decoded(folder, METHODS, settings=SETTINGS, temperature=0.8, top_k=6)


@pytest.fixture(scope="module")
def analysis(run):
    return multi_draft(run, texts_to_read(run, None), [2, 3])


@pytest.mark.long
def test_figures_are_means_over_the_positions_of_plain_forwards(run, pocket):
    """Of one method: by a forward without cache of each context, the oracle's warping, and sums by hand."""
    analysis = multi_draft(run, texts_to_read(run, "mdsd"), [3, 2, 2])
    assert analysis.methods == ["mdsd"]
    samples = run.samples()
    samples = samples[~samples.warmup & (samples.method == "mdsd")]
    requests = {(r.task, r.doc_id): r.prompt for r in load_tasks(run.plan, pocket).requests()}
    expected: dict[str, list[list[float]]] = {}
    for row in samples.itertuples():
        prompt = encode(pocket, requests[row.task, row.doc_id])
        for at in range(1, len(row.tokens)):
            text = [*prompt, *map(int, row.tokens[:at])]
            p, q = (
                oracle.warp(oracle.next_logits(pocket.models[role], text)[: pocket.vocabulary], 0.8, 6).numpy()
                for role in ("target", "draft")
            )
            overlap = np.minimum(p, q).sum()
            second = by_hand(p, q)
            expected.setdefault(row.task, []).append([overlap, overlap + second[0], overlap + second[1]])
    figures = analysis.figures.set_index(["task", "drafts", "replacement", "rule"])["value"]
    for task, rows in expected.items():
        one, with_, without = np.mean(rows, 0)
        got = analysis.figures[analysis.figures.task == task]
        assert (got.positions == len(rows)).all()
        assert got["value"].iloc[0] == pytest.approx(one, abs=1e-5)
        assert figures[task, 2, True, "recursive"] == pytest.approx(with_, abs=1e-5)
        assert figures[task, 2, False, "recursive"] == pytest.approx(without, abs=1e-5)
    assert analysis.positions == sum(map(len, expected.values()))


def by_hand(p, q):
    """What a second draft adds, drawn again from q, and from what the first one left; few tokens have any q."""
    left = np.maximum(p - q, 0)
    if left.sum() < 1e-12:
        return 0.0, 0.0
    left /= left.sum()
    refused = np.maximum(q - p, 0)
    without = 0.0
    for token in np.flatnonzero(refused):
        others = np.where(np.arange(len(q)) == token, 0, q)
        if others.sum() > 0:
            without += refused[token] * np.minimum(left, others / others.sum()).sum()
    return refused.sum() * np.minimum(left, q).sum(), without


@pytest.mark.long
def test_recursive_rejection_is_between_one_draft_and_the_best_rule(analysis):
    assert analysis.outside == 0 and analysis.sampling == "T=0.8 top-k=6"
    for _, rows in analysis.figures.groupby("task"):
        value = {(row.drafts, row.replacement, row.rule): row.value for row in rows.itertuples()}
        one = rows["value"].iloc[0]
        for kind in (True, False):
            assert one < value[2, kind, "recursive"] <= value[2, kind, "optimal"] + 1e-9
            assert value[2, kind, "recursive"] <= value[3, kind, "recursive"] <= value[3, kind, "optimal"] + 1e-9
        assert value[2, True, "optimal"] <= value[2, False, "optimal"] + 1e-9
    assert analysis.figures.left_out.max() < 1e-6, "few tokens are in the top 6"
    tasks = list(dict.fromkeys(analysis.figures.task))
    whole = analysis.figures[analysis.figures.task == tasks[-1]].iloc[0]
    assert whole.positions == analysis.positions and (tasks[-1] == ALL) == (len(tasks) > 1)
    assert whole.low <= whole["value"] <= whole.high


@pytest.mark.long
def test_what_was_measured_is_what_is_foretold(run, analysis):
    measured = analysis.measured.set_index("method")
    assert list(measured.index) == METHODS
    assert measured.drafts.tolist() == [1, 2, 4, 2]
    rounds = run.rounds().to_table().to_pandas()
    rounds = rounds[~rounds.warmup & (rounds.drafted > 0)]
    for name, row in measured.iterrows():
        mine = rounds[rounds.method == name]
        assert row.rounds == len(mine) and row.accepted == pytest.approx((mine.accepted > 0).mean())
        spread = 4 * np.sqrt(row.foretold * (1 - row.foretold) / row.rounds) + 1e-9
        assert abs(row["value"]) < spread and row["value"] == pytest.approx(row.accepted - row.foretold)
        assert row.low < row["value"] < row.high, "all rounds accepted leave a doubt too"
        assert (row.high - row.low) / 2 < 1.96 * np.sqrt(row.foretold * (1 - row.foretold) / row.rounds) + 1e-5
    # Four independent drafts have a formula, though they are not among the figures.
    assert measured.foretold["mdsd-iid"] > 0.5 and set(analysis.figures.drafts) == {1, 2, 3}


def test_places_of_first_levels(run):
    """Each draft begins where the rounds before it ended, behind the prefill's token."""
    starts = multidraft.first_levels(run, "rsd")
    rounds = run.rounds().to_table().to_pandas()
    rounds = rounds[~rounds.warmup & (rounds.method == "rsd")].sort_values("round")
    assert starts
    for key, mine in rounds.groupby(["repeat", "task", "doc_id"], sort=False):
        ends = [0, *itertools.accumulate(mine.committed)]
        expected = [(ends[i], row.accepted > 0) for i, row in enumerate(mine.itertuples()) if row.drafted]
        assert starts[(*key, "rsd")] == expected and expected[0][0] == 1


def test_what_each_method_drafts_first():
    names = ("rsd", "rsd-constant", "sps", "fly", "vanilla")
    specs = {name: load_method(name) for name in names}
    assert first_level_kind(specs["rsd"]) is None, "four drafts without replacement"
    result = first_level_kind(specs["rsd-constant"])
    assert (result.drafts, result.replacement, result.rule) == (3, False, "recursive")
    assert first_level_kind(specs["sps"]).rule == "single" and first_level_kind(specs["fly"]) is None


def test_a_pooled_mean_by_hand():
    """Two documents with 1 of 2 and 3 of 8 (in two texts): 0.4; one document has no interval."""
    documents, sums, counts = [("a", 1), ("a", 2), ("a", 2)], np.array([1.0, 1.0, 2.0]), np.array([2.0, 4.0, 4.0])
    one = mean(documents, sums, counts)
    assert one.value == pytest.approx(0.4) and (one.low, one.high) == pytest.approx((0.375, 0.5))
    assert np.isnan(mean([("a", 1)] * 3, sums, counts).low)


def test_figures_out_of_order_are_found():
    kinds = multidraft.kinds_of([2])
    right = np.array([[0.5, 0.6, 0.7, 0.6, 0.8]])
    for column, value, wrong in ((1, 0.45, 1), (1, 0.75, 1), (3, 0.81, 1), (3, 0.8, 0)):
        values = right.copy()
        values[0, column] = value
        assert count_disordered([{"values": values, "left_out": np.zeros_like(values)}], kinds) == wrong
    low = np.array([[0.5, 0.6, 0.7, 0.49, 0.8]])
    assert count_disordered([{"values": low, "left_out": np.array([[0, 0, 0, 0.02, 0]])}], kinds) == 0


def test_a_wrong_bound_would_be_seen(run, monkeypatch):
    monkeypatch.setattr(transport, "optimal", lambda p, q, drafts, replacement: transport.single(p, q))
    assert multi_draft(run, texts_to_read(run, "rsd"), [2]).outside > 0


@pytest.mark.parametrize("format", ("table", "csv", "json"))
def test_the_view_tells_the_same_in_every_form(run, analysis, capsys, format):
    show(view(analysis), format)
    text = capsys.readouterr().out
    best = analysis.figures[analysis.figures.rule == "optimal"]["value"].iloc[-1]
    if format == "json":
        facts = json.loads(text)
        assert facts["figures"][-1]["value"] == pytest.approx(best) and facts["outside"] == 0
        assert facts["figures"][0]["replacement"] is None
    elif format == "csv":
        assert text.startswith("analysis,table,row,column,value\n")
    else:
        assert f"{best:.3f}" in text and "the best rule" in text
        assert "At every position recursive rejection is between one draft and the best rule." in text
        assert max(map(len, text.splitlines())) <= 80


def test_bad_input_is_one_clear_line(run, tmp_path):
    texts = texts_to_read(run, None)
    for drafts in ([], [1], [4], [2, 9]):
        with pytest.raises(UserError, match="--drafts: give some of 2 to 3"):
            multi_draft(run, texts, drafts)
    words = ["analyze", "multi-draft", str(run.folder), "--drafts", "two"]
    assert "--drafts two: write whole numbers" in call(*words).stderr
    with pytest.raises(UserError, match="has no method csd; it has vanilla, sps, mdsd, mdsd-iid, rsd"):
        texts_to_read(run, "csd")
    with pytest.raises(UserError, match=r"prompts of .* have changed since"):
        multi_draft(run, [{**texts[0], "prompt_hash": "0"}], [2])
    greedy = StoredRun(run.folder)
    greedy.__dict__["plan"] = run.plan.model_copy(update={"temperature": 0.0})
    with pytest.raises(UserError, match="is greedy, so it has no distributions"):
        texts_to_read(greedy, None)
    alone = StoredRun(run.folder)
    alone.__dict__["plan"] = run.plan.model_copy(update={"pair": run.plan.pair.model_copy(update={"draft": None})})
    with pytest.raises(UserError, match="has no draft model"):
        texts_to_read(alone, None)
    other = StoredRun(run.folder)
    models = run.manifest["models"]
    other.__dict__["manifest"] = {**run.manifest, "models": {**models, "draft": {"weights_hash": "other"}}}
    with pytest.raises(UserError, match=r"decoded with different models .*weights of the draft"):
        multi_draft(other, texts, [2])
    stored = StoredRun(run.folder)
    stored.__dict__["manifest"] = {**run.manifest, "imported": {}}
    with pytest.raises(UserError, match="was imported"):
        texts_to_read(stored, None)


def test_a_run_without_drafts_has_figures_all_the_same(tmp_path):
    plain = decoded(tmp_path / "plain", ["vanilla"], temperature=1.0)
    analysis = multi_draft(plain, texts_to_read(plain, None), [2])
    assert analysis.methods == ["vanilla"] and analysis.measured.empty and analysis.outside == 0
    assert isinstance(analysis.figures, pd.DataFrame) and (analysis.figures["value"] > 0.3).all()


def test_a_draft_of_unknown_acceptance_is_damage(monkeypatch):
    row = dict.fromkeys(multidraft.KEY, 0) | {"drafted": 2, "committed": 1, "accepted": None}
    monkeypatch.setattr(multidraft, "recorded_rounds", lambda run, name: [row])
    with pytest.raises(UserError, match="no number of accepted tokens"):
        multidraft.first_levels(SimpleNamespace(folder="runs/it"), "mdsd")
