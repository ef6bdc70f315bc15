"""Rounds replayed under other draft lengths: by hand, against real decoding, and against a naive second way."""

import json
import math

import naive_simulate
import pytest
import torch
from cases import mostly_long
from drafted import KEY, NAN, SURE, made, run_of, text_of
from gates import GREEDY, decode, lively_prompt, pair, random_head, sps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from screens import call

from specbench.analysis import forward_times
from specbench.analysis.forward_times import Times
from specbench.analysis.replay import Rule, Unknown, replay, unknown
from specbench.analysis.simulate import simulate
from specbench.analysis.simulated_rows import ALL, iid_speedup
from specbench.config import UserError
from specbench.engine.clock import Lap
from specbench.engine.lengths import Lengths
from specbench.engine.types import Sampling
from specbench.measure.sample import round_row
from specbench.methods.lengths.confidence import Confidence
from specbench.methods.lengths.cumulative import Cumulative
from specbench.methods.lengths.entropy import Entropy
from specbench.methods.lengths.specdecpp import Predicted
from specbench.results import records
from specbench.results.stored import StoredRun


def rows_of(rounds, doc_id=0):
    """Rounds of decoding as the main loop records them."""
    return [KEY | {"doc_id": doc_id} | round_row(i, one, Lap(1.0, [])) for i, one in enumerate(rounds)]


def fixed(gamma, **changes):
    return Rule("fixed", gamma, **changes)


def test_positions_by_hand():
    # Accepted, accepted, rejected; then three accepted and a bonus; then two of four accepted when the text ends.
    text = text_of(made((3, 2), (3, 3), (4, 4), cut=3))
    assert text.agree[:3] == [1, 1, 0] and text.agree[3:6] == [1, 1, 1]
    assert math.isnan(text.agree[6]) and text.agree[7:] == [1, 1]


def test_fixed_lengths_by_hand():
    # 1 1 0 | 1 1 1 ? | 1 1: all but one position known; it is a bonus position of γ = 3 and, below, of γ = 1.
    text = text_of(made((3, 2), (3, 3), (4, 4), cut=3))
    three = replay(text, fixed(3), SURE)
    assert (three.rounds, three.drafted, three.accepted) == (3, 9, 7)
    # γ = 1: [1 1] [0] [1 1] [1 ?] [1 1]: five rounds, whose drafts are accepted in four.
    one = replay(text, fixed(1), SURE)
    assert (one.rounds, one.drafted, one.accepted) == (5, 5, 4)
    # γ = 2: [1 1 0] [1 1 1] then ? 1 1: accepted with 1/2 and all is one round, else two rounds, 0 and then 2 accepted.
    two = replay(text, fixed(2), SURE)
    assert (two.rounds, two.drafted, two.accepted) == (3.5, 7, 2 + 2 + 0.5 * 2 + 0.5 * (0 + 2))
    assert two.tokens == 9 and two.lengths == {2: 3.5}


def test_a_draft_that_stops_at_the_end_token():
    text = text_of(made((4, 4), cut=2), "eos")  # 1 1 1, the last one EOS
    assert replay(text, fixed(8), SURE).drafted == 8
    assert replay(text, fixed(8, stop_at_eos=True), SURE).drafted == 3
    assert replay(text, fixed(2, stop_at_eos=True), SURE).drafted == 2
    # A rejected token, or one behind it, may be a drafted EOS: 0 | 1 0, with tokens 10 11 12 | 9 11.
    rows = made((3, 0), (2, 1))
    rows[2]["draft_tokens"] = [9, 11]
    assert replay(text_of(rows, eos=[10]), fixed(8, stop_at_eos=True), SURE).drafted == 1 + 8
    assert replay(text_of(rows, eos=[12]), fixed(8, stop_at_eos=True), SURE).drafted == 3 + 8
    assert replay(text_of(rows, eos=[11]), fixed(8, stop_at_eos=True), SURE).drafted == 2 + 2


def signalled(*signals, accepted):
    """One draft with these signals, of which so many tokens were accepted."""
    rows = made((len(signals), accepted))
    rows[1]["predictions"] = list(signals)
    return text_of(rows)


@pytest.mark.parametrize(
    ("kind", "threshold", "shortest", "drafted"),
    [
        # 1 - 0.9 = 0.1, 1 - 0.9 · 0.8 = 0.28, 1 - 0.9 · 0.8 · 0.5 = 0.64: known only one token later.
        ("specdecpp", 0.05, 1, 2),
        ("specdecpp", 0.1001, 1, 3),
        ("specdecpp", 0.3, 1, 4),
        ("specdecpp", 0.3, 5, 5),
        ("specdecpp", 0.7, 1, 6),
        ("confidence", 0.85, 1, 2),
        ("confidence", 0.6, 1, 3),
        ("confidence", 0.85, 4, 6),
        ("cumulative", 0.71, 1, 3),
        ("cumulative", 0.2, 1, 6),
        ("cumulative", 0.73, 1, 2),
        ("entropy", 0.85, 1, 1),
        ("entropy", 0.95, 1, 6),
    ],
)
def test_thresholds_by_hand(kind, threshold, shortest, drafted):
    text = signalled(0.9, 0.8, 0.5, 0.95, 0.9, NAN, accepted=1)
    replayed = replay(text, Rule(kind, 6, shortest, threshold), SURE)
    first = 1 if drafted == 1 else 2  # tokens of the first round: one accepted, then a correction or the bonus
    assert replayed.rounds == (1 if first == 2 else 2) or drafted == 1
    assert replayed.lengths.get(drafted, 0) >= 1 and not replayed.guessed


def test_a_prediction_that_is_missing_is_counted():
    text = signalled(0.9, 0.8, NAN, accepted=1)  # an adaptive draft that stopped behind its third token
    same = replay(text, Rule("specdecpp", 20, 1, 0.2), SURE)
    assert (same.guessed, same.drafted) == (0, 3)  # 1 - 0.9 · 0.8 = 0.28
    longer = replay(text, Rule("specdecpp", 20, 1, 0.5), SURE)
    assert (longer.guessed, longer.drafted) == (1, 4)  # 1 - 0.9 · 0.8 · 0.5 (a guess) = 0.64


def test_what_untested_positions_get():
    # Last tokens of drafts: 60 accepted, 20 rejected; tokens before them: 2 · 80 accepted and 40 rejected first ones.
    rows = [((3, 3), 60), ((3, 2), 20), ((3, 0), 40)]
    text = text_of(made(*(shape for shape, count in rows for _ in range(count))))
    assert unknown([text]).agree == 60 / 80
    few = text_of(made((3, 3), (3, 2), (3, 0)))
    assert unknown([few]).agree == 5 / 7
    assert text_of(made((4, 4), cut=1)).last == (1, 1)
    assert text_of(made((4, 4), cut=2)).last == (0, 0)  # the last one lies behind the end
    rows = made((3, 1))
    rows[1]["predictions"] = [0.75, 0.25, 0.125]
    assert unknown([text_of(rows)]).signals == {"accepted": 0.75, "rejected": 0.25, "unread": 0.125}


@st.composite
def recorded(draw):
    """Rounds of a text with at most 7 untested positions, with or without predictions, cut anywhere."""
    shapes = draw(st.lists(st.integers(0, 5).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), max_size=7))
    cut = draw(st.integers(0, shapes[-1][1])) if shapes else 0
    rows = made(*shapes, cut=cut)
    signal = st.sampled_from([NAN, 0.125, 0.25, 0.5, 0.75, 0.875, 1.0])
    if draw(st.booleans()):
        for row in rows[1:]:
            row["predictions"] = draw(st.lists(signal, min_size=row["drafted"], max_size=row["drafted"]))
    for row in rows[1:]:
        row["draft_tokens"] = draw(st.lists(st.integers(7, 12), min_size=row["drafted"], max_size=row["drafted"]))
    return rows


rules = st.builds(
    Rule,
    st.sampled_from(["fixed", "specdecpp", "confidence", "cumulative", "entropy"]),
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from([0.1, 0.3, 0.6, 0.8]),
    st.booleans(),
)


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(recorded(), rules, st.booleans(), st.sampled_from([0.25, 0.75, 1.0]), st.sampled_from([0.25, 0.625]))
def test_against_the_naive_way(rows, rule, ended, chance, guess):
    text = text_of(rows, "eos" if ended else "length", eos=[7, 11])
    replayed = replay(text, rule, Unknown(chance, dict.fromkeys(["accepted", "rejected", "unread"], guess)))
    expected = naive_simulate.simulate(rows, ended, {7, 11}, vars(rule), chance, guess)
    for name, value in expected.items():
        assert getattr(replayed, name) == pytest.approx(value, abs=1e-9), name
    assert sum(replayed.lengths.values()) == pytest.approx(replayed.rounds)
    assert sum(k * n for k, n in replayed.lengths.items()) == pytest.approx(replayed.drafted)


def counts(rows):
    return [(row["drafted"], row["accepted"], row["committed"]) for row in rows if row["round"]]


def total(rows):
    return tuple(sum(column) for column in zip(*counts(rows), strict=True))


@mostly_long("architecture", ["llama", "gemma2"], ("gemma2",))
def test_greedy_rounds_are_those_of_real_decoding(architecture):
    prompt, _ = lively_prompt(architecture, 8, 60)
    _, rounds = decode(sps(architecture, 8, Lengths()), prompt, 60)
    rows = rows_of(rounds)
    again = replay(text_of(rows), fixed(8), SURE)
    assert (again.rounds, again.drafted, again.accepted) == (len(rows) - 1, *total(rows)[:2])
    _, long_rounds = decode(sps(architecture, 60, Lengths()), prompt, 60)  # no draft is accepted whole
    text = text_of(rows_of(long_rounds))
    assert not any(map(math.isnan, text.agree)) and 0 in text.agree and 1 in text.agree
    for gamma in (1, 3, 8):
        _, real = decode(sps(architecture, gamma, Lengths()), prompt, 60)
        replayed = replay(text, fixed(gamma), SURE)
        drafted, accepted, committed = total(rows_of(real))
        assert (replayed.rounds, replayed.drafted, replayed.accepted) == (len(real) - 1, drafted, accepted)
        assert replayed.tokens == committed == 59


def looking(kind, threshold, shortest):
    draft = pair("llama")[1]
    return {
        "specdecpp": lambda: Predicted(random_head(draft), threshold, shortest, hashes={}),
        "confidence": lambda: Confidence(threshold, shortest),
        "cumulative": lambda: Cumulative(threshold, shortest),
        "entropy": lambda: Entropy(threshold, shortest),
    }[kind]()


@mostly_long(
    "kind, thresholds",
    [("specdecpp", (0.3, 0.7)), ("confidence", (0.1, 0.2)), ("cumulative", (0.003, 0.03)), ("entropy", (2.6, 3.0))],
    lambda kind, thresholds: kind in ("specdecpp", "entropy"),
)
def test_thresholds_are_those_of_real_decoding(kind, thresholds):
    prompt, _ = lively_prompt("llama", 8, 40)
    _, rounds = decode(sps("llama", 60, looking(kind, 0.5, 60)), prompt, 40)
    text = text_of(rows_of(rounds))
    lengths = set()
    for threshold in thresholds:
        for shortest, longest in ((1, 12), (2, 9)):
            _, real = decode(sps("llama", longest, looking(kind, threshold, shortest)), prompt, 40)
            replayed = replay(text, Rule(kind, longest, shortest, threshold), SURE)
            drafted, accepted, _ = total(rows_of(real))
            assert (replayed.rounds, replayed.drafted, replayed.accepted) == (len(real) - 1, drafted, accepted)
            assert not replayed.guessed
            lengths |= set(replayed.lengths)
    assert len(lengths) > 3  # else nothing was adapted


@pytest.mark.long
def test_sampled_rounds_are_those_of_real_decoding_on_average():
    """Rounds per token at γ = 2, predicted from texts recorded at γ = 12, and of texts decoded at γ = 2."""
    prompt, _ = lively_prompt("llama", 8, 40)
    warm = Sampling(0.7)

    def texts(gamma, seeds):
        return [rows_of(decode(sps("llama", gamma, Lengths()), prompt, 20, warm, seed)[1]) for seed in seeds]

    wide = [text_of(rows) for rows in texts(12, range(100))]
    missing = unknown(wide)
    predicted = torch.tensor([replay(text, fixed(2), missing).rounds for text in wide], dtype=torch.float64)
    real = torch.tensor([len(rows) - 1.0 for rows in texts(2, range(1000, 1100))], dtype=torch.float64)
    error = (predicted.var() / len(predicted) + real.var() / len(real)).sqrt()
    assert abs(predicted.mean() - real.mean()) < 3 * error
    recorded_rounds = torch.tensor([sum(1 for x in t.agree if x != 1) for t in wide], dtype=torch.float64)
    assert abs(recorded_rounds.mean() - real.mean()) > 6 * error  # the test would see a replay that changes nothing


# The command, on made runs.


def test_a_whole_simulation_by_hand(tmp_path):
    # Both documents agree in every second position: γ = 3 commits two a round, γ = 1 as well, γ = 2 as well.
    methods = {"vanilla": [[(0, 0)] * 40] * 2, "sps[gamma=3]": [[(3, 1)] * 20] * 2, "sps[gamma=1]": [[(1, 1)] * 20] * 2}
    run = run_of(tmp_path / "run", methods)
    simulated = simulate(run, "sps[gamma=3]", None, [1, 2, 3])
    assert simulated.alpha == 0.5 and simulated.untested == 0 and simulated.texts == 2
    table = simulated.table[simulated.table.task == ALL].set_index("setting")
    assert table.tau.tolist() == [2, 2, 2]
    assert table.acceptance_rate.tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert table.discard_rate.tolist() == pytest.approx([0, 0.5, 1])
    assert table.verification_rate.tolist() == pytest.approx([0.5] * 3)
    # A round takes 12.5 + 1.5 K seconds and commits two tokens; a vanilla token 12.5.
    assert table.tokens_per_s.tolist() == pytest.approx([2 / 14, 2 / 15.5, 2 / 17])
    assert table.speedup.tolist() == pytest.approx([2 * 12.5 / 14, 2 * 12.5 / 15.5, 2 * 12.5 / 17])
    # α = 0.5, c = 1 / 12.5: γ = 1: 1.5 / 1.08; γ = 2: 1.75 / 1.16; γ = 3: 1.875 / 1.24.
    assert table.theory_speedup.tolist() == pytest.approx([1.5 / 1.08, 1.75 / 1.16, 1.875 / 1.24])
    assert table.best.tolist() == [True, False, False] and table.theory_best.tolist() == [False, False, True]
    assert table.measured.fillna("").tolist() == ["sps[gamma=1]", "", "sps[gamma=3]"]
    assert table.measured_tokens_per_s["gamma=1"] == pytest.approx(2 / 14)
    assert table.time_error.dropna().tolist() == pytest.approx([0, 0], abs=1e-9)
    twice = simulate(run, "sps[gamma=3]", "t_draft=1,t_target=10,overhead=2,vanilla=12.5", [1]).table.iloc[0]
    assert twice.tokens_per_s == pytest.approx(2 / 13) and twice.time_error is None  # of another machine


def slower(run, method, times):
    """The run with all rounds of a method longer by a factor, and its samples with them."""
    for name, columns in (("rounds", ("target_seconds", "draft_seconds", "seconds")), ("samples", ("decode_seconds",))):
        rows = records.read_rows(run.folder, name).to_pylist()
        for row in rows:
            if row["method"] == method and row.get("round", 1):
                row |= {column: times * row[column] for column in columns if row[column]}
        schema = {"rounds": records.ROUNDS, "samples": records.SAMPLES}[name]
        records.write_table(run.folder / f"{name}.parquet", rows, schema)
    return StoredRun(run.folder)


@pytest.mark.parametrize(("times", "error", "given"), [(1.0, 0.0, True), (1.05, 0.05, True), (0.8, 0.2, False)])
def test_the_error_of_a_simulation_for_its_own_run(tmp_path, times, error, given):
    """γ = 1, which the run measured itself, took `times` what γ = 3 foretells; beyond a tenth no speedup is given."""
    methods = {"vanilla": [[(0, 0)] * 40] * 2, "sps[gamma=3]": [[(3, 1)] * 20] * 2, "sps[gamma=1]": [[(1, 1)] * 20] * 2}
    run = slower(run_of(tmp_path / "run", methods), "sps[gamma=1]", times)
    simulated = simulate(run, "sps[gamma=3]", None, [1, 2, 3])
    assert simulated.error == pytest.approx(error)
    assert simulated.table.speedup.notna().all() == given and simulated.table.best.any() == given
    shown = " ".join(call("simulate", run.folder, "--method", "sps[gamma=3]", "--gamma", "1,2,3").output.split())
    assert f"tok/s of other lengths in this run are off by up to {error:.0%}" in shown
    assert ("so no speedup is given" in shown) != given
    assert math.isnan(simulate(run, "sps[gamma=3]", None, [2, 3]).error)


@pytest.mark.parametrize("recorded", [1, 2, 3])
def test_short_drafts_give_no_speed_of_longer_ones(tmp_path, recorded):
    methods = {"vanilla": [[(0, 0)] * 40] * 2, f"sps[gamma={recorded}]": [[(recorded, 1)] * 20] * 2}
    run = run_of(tmp_path / "run", methods)
    table = simulate(run, None, None, [1, 2, 3, 6]).table.set_index("setting")
    given = table.tokens_per_s.notna()
    assert given.to_dict() == {f"gamma={n}": n <= recorded or recorded == 3 for n in (1, 2, 3, 6)}
    assert (table.speedup.notna() == given).all() and not table.best[~given].any() and table.tau.notna().all()
    shown = " ".join(call("simulate", run.folder, "--gamma", "1,6").output.split())
    assert ("no speed is given for longer ones" in shown) == (recorded < 3)
    assert simulate(run, None, "t_draft=1,t_target=9", [6]).table.speedup.notna().all()


def test_each_task_has_its_rows(tmp_path):
    shapes = {"sps[gamma=3]": [[(3, 1)] * 20, [(3, 3)] * 10]}
    table = simulate(run_of(tmp_path / "run", shapes, tasks=["one", "two"]), None, None, [1, 3]).table
    assert len(table) == 6
    three = table[table.setting == "gamma=3"].set_index("task")
    assert three.tau.to_dict() == pytest.approx({ALL: 80 / 30, "one": 2, "two": 4})
    # One: 2 tokens for 14 s or 17 s; two: 4 tokens for 17 s with γ = 3.
    best = table[table.best].set_index("task").setting.to_dict()
    assert best == {ALL: "gamma=3", "one": "gamma=1", "two": "gamma=3"}


def test_thresholds_of_a_run(tmp_path):
    values = {"threshold": 0.7, "shortest": 4, "longest": 4, "stop_at_eos": True, "head": "auto"}
    options = {"settings": {"specdecpp": values}, "extra": {"predictions": [0.5, 0.5, 0.5, NAN]}}
    run = run_of(tmp_path / "run", {"specdecpp": [[(4, 2)] * 30]}, **options)
    table = simulate(run, None, None, [], [0.4, 0.7]).table.set_index("setting")
    # Fixed at 4, so replayed with the usual shortest, 2: stops behind the 2nd token (1 - 0.5 > 0.4), or the 3rd (0.75).
    # In both, two tokens are accepted; then comes the bonus, or the rejected one.
    assert table.tau.tolist() == [3, 3] and table.acceptance_rate.tolist() == pytest.approx([1, 2 / 3])
    assert simulate(run, None, None, [], [0.4], shortest=4).table.acceptance_rate.iloc[0] == 0.5
    with pytest.raises(UserError, match="--shortest 9: these drafts have at most 4 tokens"):
        simulate(run, None, None, [], [0.4], shortest=9)
    both = simulate(run).table
    assert any(both.setting == "gamma=4") and any(both.setting == "threshold=0.5")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "vanilla"}, "drafted nothing"),
        ({"method": "csd"}, "has no method 'csd'; it has vanilla, sps[gamma=3]"),
        ({"gammas": [2, 0]}, "--gamma 0: a draft has at least 1 token"),
        ({"thresholds": [0.5]}, "have no predictions; a run with them: specbench run --method specdecpp"),
        ({"thresholds": [1.5]}, "--threshold 1.5: a threshold lies between 0 and 1"),
        ({"given": "t_draft=-1,t_target=2"}, "t_draft must be above 0 seconds, not -1"),
        ({"given": "t_draft=nan,t_target=2"}, "t_draft must be above 0 seconds, not nan"),
        ({"given": "t_draft=1"}, "t_target is missing"),
        ({"given": "t_draft=1,t_target=2,overhead=-1"}, "overhead must be 0 or more seconds"),
        ({"given": "t_draft=1,t_target=2,slope=1"}, "no time is called 'slope'"),
        ({"given": "t_draft=x,t_target=2"}, "write KEY=SECONDS"),
        ({"given": "nothing.json"}, "there is no file nothing.json"),
    ],
)
def test_bad_requests_are_one_line(tmp_path, arguments, words):
    run = run_of(tmp_path / "run", {"vanilla": [[(0, 0)] * 9], "sps[gamma=3]": [[(3, 1)] * 9]})
    with pytest.raises(UserError) as error:
        simulate(run, **arguments)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_files_of_forward_times(tmp_path):
    path = tmp_path / "times.json"
    mine = {"target": {"model": "big", "weights_hash": "aa"}, "draft": {"model": "small", "weights_hash": "bb"}}
    other = mine | {"draft": {"model": "another", "weights_hash": "cc"}}
    path.write_text(json.dumps({"times": {"t_draft": 1, "t_target": 2.5}, "models": mine}))
    assert forward_times.from_option(str(path), mine) == Times(1, 2.5)
    with pytest.raises(UserError, match="another pair: its draft is small, the run's another"):
        forward_times.from_option(str(path), other)
    for text, words in (("{", "damaged"), ("[]", "not a prof"), ('{"times": {"t_draft": "x"}}', "t_target is missing")):
        path.write_text(text)
        with pytest.raises(UserError, match=words):
            forward_times.from_option(str(path), mine)


def test_runs_that_cannot_be_replayed(tmp_path):
    with pytest.raises(UserError, match="no drafts of one chain"):
        simulate(run_of(tmp_path / "plain", {"vanilla": [[(0, 0)] * 9]}))
    trees = run_of(tmp_path / "trees", {"swift": [[(3, 1)] * 9]}, extra={"parents": [-1, 0, 0]})
    with pytest.raises(UserError, match="swift drafts trees"):
        simulate(trees, "swift")
    lines = run_of(tmp_path / "lines", {"sps[gamma=3]": [[(3, 1)] * 9]}, extra={"parents": [-1, 0, 1]})
    assert simulate(lines, gammas=[3]).table.tau[0] == pytest.approx(2), "a tree in one line is a chain"
    looked_up = run_of(tmp_path / "pld", {"pld": [[(3, 1)] * 9]}, extra={"draft_forwards": 0})
    with pytest.raises(UserError, match="pld drafts without a model"):
        simulate(looked_up, "pld")
    untimed = run_of(tmp_path / "untimed", {"sps[gamma=3]": [[(3, 1)] * 9]}, extra={"target_seconds": None})
    with pytest.raises(UserError, match="lack the seconds"):
        simulate(untimed)


def test_the_theory():
    assert iid_speedup(1.0, 4, 0.25) == pytest.approx(5 / 2)
    assert iid_speedup(0.0, 3, 0.0) == 1
    # Leviathan et al., Table 2: α = 0.75, c about 0.02, γ = 7 gives 3.4 measured; the formula says 3.16.
    assert iid_speedup(0.75, 7, 0.02) == pytest.approx((1 - 0.75**8) / 0.25 / 1.14)


@pytest.mark.parametrize("wide", [True, False])
def test_the_table_fits_80_columns(tmp_path, wide, monkeypatch):
    monkeypatch.setattr("specbench.report.finding.console", Console(width=80))
    methods = {"vanilla": [[(0, 0)] * 40], "sps[gamma=3]": [[(3, 3)] * 20]}
    methods |= {"sps[gamma=12]": [[(12, 1)] * 9]} if wide else {}
    folder = run_of(tmp_path / "run", methods).folder
    result = call("simulate", folder, "--method", "sps[gamma=3]", "--gamma", "2,3,12")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80 and "…" not in result.output
    assert "25.0% of the positions were not tested" in result.output and "*" in result.output
    assert ("measured" in result.output) and ("gamma=12" in result.output)


def test_formats(tmp_path):
    folder = run_of(tmp_path / "run", {"sps[gamma=3]": [[(3, 1)] * 20]}).folder
    as_json = call("simulate", folder, "--gamma", "2", "--format", "json")
    report = json.loads(as_json.output)
    assert report["table"][0]["tau"] == 2 and report["alpha"] == 0.5 and report["times"]["t_draft"] == pytest.approx(1)
    as_csv = call("simulate", folder, "--gamma", "2", "--format", "csv")
    assert as_csv.output.splitlines()[0].startswith("task,setting,tau,acceptance_rate")
    assert call("simulate", folder, "--gamma", "0").exit_code == 2
    assert GREEDY.greedy


def test_the_oracle_is_not_replayed(tmp_path):
    """It drafts up to the next rejection, so nobody knows what would have been rejected."""
    settings = {"oracle": {"longest": 64, "tokens": 9, "stop_at_eos": True}}
    run = run_of(tmp_path / "run", {"oracle": [[(3, 3)] * 10]}, settings=settings)
    with pytest.raises(UserError, match="oracle never tested a token that would be rejected"):
        simulate(run, "oracle")
