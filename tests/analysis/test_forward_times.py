"""What rounds cost next to their drafts: the context, a batch, and the prefill; by hand, and of made records."""

import json
import math

import pandas as pd
import pytest
from drafted import made, run_of, text_of
from screens import call

from specbench.analysis import forward_times
from specbench.analysis.forward_times import Times
from specbench.analysis.replay import Rule, Unknown, replay
from specbench.analysis.simulate import Options, simulate
from specbench.analysis.simulated_rows import ALL
from specbench.config import UserError
from specbench.results import records

SURE = Unknown(0.5, {"accepted": 0.5, "rejected": 0.5, "unread": 0.5})


def row(result, name="gamma=2"):
    return result.table[(result.table.setting == name) & (result.table.task == ALL)].iloc[0]


def test_a_round_of_a_batch():
    """3 texts that draft 2 tokens: the target reads 9 tokens, 8 more than one; each draft forward 3, 2 more."""
    times = Times(1.0, 10.0, 0.5, 0.25, 2.0, 0.125, draft_width_slope=0.0625)
    assert times.round(2, 3) == 10 + 0.5 * 8 + 2 + 2 * (1 + 0.0625 * 2 + 0.125) + 0.25
    assert times.round(2, 1) == times.round(2) == 10 + 0.5 * 2 + 2 + 2 * 1.125 + 0.25
    assert times.vanilla_text(7, 100, 3) == 7 * (12 + 0.5 * 2)


def test_seconds_grow_with_the_context():
    """Rounds of 2 drafts from 0, 3 and 6 tokens after the prefill's, behind a prompt of 100; each text in a batch of 2.

    The target's cache has 100 + 103 + 106 tokens, the drafts' 100 + 101, 103 + 104 and 106 + 107.
    """
    text = text_of(made((2, 2), (2, 2), (2, 2)))
    laid = replay(text, Rule("fixed", 2), Unknown(0.0, SURE.signals))
    assert laid.lengths == {2: 3} and laid.starts == 0 + 3 + 6
    times = Times(1.0, 10.0, context_slope=0.5, draft_context_slope=0.25)
    context = 0.5 * (100 + 103 + 106) + 0.25 * (201 + 207 + 213)
    assert times.text(laid, 100) == pytest.approx(3 * 12 + context)
    assert times.text(laid, 100, 2) == pytest.approx(3 * 12 + 2 * context)
    assert times.vanilla_text(9, 100) == pytest.approx(9 * 10 + 0.5 * sum(range(100, 109)))


def growing(folder):
    """A round with 3 drafts takes 20 s and 0.01 s a token of context in the target, 3 s and 0.006 s in the draft."""
    run = run_of(folder, {"vanilla": [[(0, 0)] * 80], "sps[gamma=3]": [[(3, 1)] * 40]})
    path = run.folder / "rounds.parquet"
    rows = records.read_rows(run.folder, "rounds").to_pylist()
    before = {"vanilla": 30, "sps[gamma=3]": 30}
    for row in rows:
        if row["round"]:
            context = before[row["method"]]
            drafts = row["drafted"]
            row["target_seconds"] = 20 + 0.01 * context if drafts else 8 + 0.01 * context
            row["draft_seconds"] = drafts * (1 + 0.002 * context)
            row["seconds"] = row["target_seconds"] + row["draft_seconds"]
            before[row["method"]] += row["committed"]
    records.write_table(path, rows, records.ROUNDS)
    return run


def test_skewed_rounds_count_with_their_mean_and_held_up_ones_not():
    """Of eight rounds six take 10 s and two 14 s, 11 on the mean; a ninth took 500 s, and vanilla's are as skewed."""
    seconds = [10.0] * 6 + [14.0] * 2
    rounds = pd.DataFrame({"drafted": 2, "draft_forwards": 2, "draft_seconds": 4.0, "seconds": [*seconds, 500.0]})
    rounds["target_seconds"] = rounds.seconds - 5
    rounds["first_draft_seconds"] = 2.0
    vanilla = pd.DataFrame({"drafted": 0, "target_seconds": 6.0, "seconds": [6.0] * 3 + [10.0, 90.0]})
    prefills = pd.DataFrame({"width": [], "target_seconds": [], "draft_seconds": []}, dtype=float)
    times = forward_times.from_records(rounds, prefills, vanilla)
    assert times.round(2) == pytest.approx(11.0) and times.token == pytest.approx(7.0)


def rounds_of_four(target, first, draft, outside):
    """Three rounds that draft 4 tokens, in seconds of their parts."""
    rounds = pd.DataFrame({"drafted": [4] * 3, "draft_forwards": 4, "draft_seconds": draft, "target_seconds": target})
    return rounds.assign(seconds=target + draft + outside, first_draft_seconds=first)


def vanilla_of(target, outside):
    seconds = {"target_seconds": target, "draft_seconds": 0.0, "seconds": target + outside}
    return pd.DataFrame({"drafted": [0] * 3} | seconds)


NO_PREFILLS = pd.DataFrame({"width": [], "target_seconds": [], "draft_seconds": []}, dtype=float)


def test_shorter_drafts_lie_between_vanilla_and_the_recorded_rounds():
    """Rounds of 4 drafts: target 14 s, draft 8, rest 4. Vanilla: target 10, rest 1. A prefill of 105 tokens takes 24 s.

    Two drafts take half of the target's step from vanilla, 2, three quarters of that outside of forwards, 2.25 (half of
    it is any draft's), and 4 s of the draft; eight take 0.1 s for each further token that the target reads, and no more
    outside of forwards.
    """
    rounds, vanilla = rounds_of_four(14.0, 2.0, 8.0, 4.0), vanilla_of(10.0, 1.0)
    prefills = pd.DataFrame({"width": [105], "target_seconds": [24.0], "draft_seconds": [math.nan]})
    times = forward_times.from_records(rounds, prefills, vanilla)
    assert [times.round(drafted) for drafted in (0, 2, 4, 8)] == pytest.approx([11, 11 + 4.25 + 4, 26, 26 + 0.4 + 8])
    alone = forward_times.from_records(rounds, prefills, vanilla[:0])
    assert [alone.round(drafted) for drafted in (2, 4, 8)] == pytest.approx([26 - 0.2 - 4, 26, 26 + 0.4 + 8])
    # A prefill that is slower than this says no more than the step from vanilla does.
    slow = forward_times.from_records(rounds, prefills.assign(target_seconds=1000.0), vanilla)
    assert slow.round(8) == pytest.approx(26 + 4 * 1 + 8)


def machine(drafted):
    """Seconds of target, first draft forward, whole draft, and outside, where a forward takes more after another model.

    The target takes 10 s and 0.25 for each token beyond the first, the draft 1 s a token; either takes 0.5 more if the
    forward before it was of the other. Outside of forwards a round takes 1 s, and 0.4 and 0.1 a token if it drafts.
    """
    cold = 0.5 if drafted else 0.0
    draft = drafted + cold
    return 10 + 0.25 * drafted + cold, 1 + cold, draft, 1 + (0.4 + 0.1 * drafted if drafted else 0.0)


def test_forwards_that_follow_one_of_the_other_model_take_longer():
    """From rounds of 4 tokens and vanilla's all other lengths come out as on the `machine`, by parts written out."""
    target, _, _, outside = machine(0)
    times = forward_times.from_records(rounds_of_four(*machine(4)), NO_PREFILLS, vanilla_of(target, outside))
    assert times.round(0) == times.token == 11
    assert times.round(1) == pytest.approx((10.25 + 0.5) + 1.5 + 1.5)
    assert times.round(2) == pytest.approx((10.5 + 0.5) + 2.5 + 1.6)
    assert times.round(4) == pytest.approx((11 + 0.5) + 4.5 + 1.8)
    assert times.round(8) == pytest.approx((12 + 0.5) + 8.5 + 1.8), "no more outside of forwards than recorded"
    # A target that takes no longer than vanilla's has no cold start, whatever the draft's first forward takes.
    level = forward_times.from_records(rounds_of_four(10.0, 3.0, 6.0, 1.0), NO_PREFILLS, vanilla_of(10.0, 1.0))
    assert [level.round(drafted) for drafted in (1, 2, 4)] == pytest.approx([14, 15, 17])


def test_the_first_forward_of_a_draft_is_the_recorded_one():
    """4 drafted tokens take 8 s: 3.5 the first, 1.5 each further one, whatever a prefill of the draft takes.

    A run that does not tell has four of 2 s. A block, which is one forward, takes as long at any length, and says
    nothing of a first forward: the target's 2 s over vanilla's are of its four tokens.
    """
    rounds, vanilla = rounds_of_four(14.0, 3.5, 8.0, 0.0), vanilla_of(14.0, 0.0)
    prefills = pd.DataFrame({"width": [10, 90], "target_seconds": math.nan, "draft_seconds": [60.0, 100.0]})
    told = forward_times.from_records(rounds, prefills, vanilla)
    assert [told.round(drafted) for drafted in (1, 2, 4, 8)] == pytest.approx([17.5, 19, 22, 28])
    untold = forward_times.from_records(rounds.assign(first_draft_seconds=math.nan), prefills, vanilla)
    assert [untold.round(drafted) for drafted in (1, 2, 4, 8)] == pytest.approx([16, 18, 22, 30])
    one = rounds.assign(draft_forwards=1, first_draft_seconds=8.0)
    block = forward_times.from_records(one, prefills, vanilla)
    assert [block.round(drafted) for drafted in (1, 2, 4, 8)] == pytest.approx([22] * 4)
    block = forward_times.from_records(one, prefills, vanilla_of(12.0, 0.0))
    assert [block.round(drafted) for drafted in (1, 2, 4)] == pytest.approx([20.5, 21, 22])


def test_slopes_of_the_records_by_context(tmp_path):
    simulated = simulate(growing(tmp_path / "run"), gammas=[3], options=Options(by_context=True))
    assert simulated.times.context_slope == pytest.approx(
        0.01
    ) and simulated.times.draft_context_slope == pytest.approx(0.002)
    context = sum(range(30, 110, 2))  # of 40 rounds
    drafts = 3 * context + 40 * 3  # of three forwards a round: 0, 1 and 2 tokens further
    seconds = 40 * (20 + 3) + 0.01 * context + 0.002 * drafts
    assert row(simulated, "gamma=3").tokens_per_s == pytest.approx(80 / seconds, rel=2e-3)
    vanilla = 80 * 8 + 0.01 * sum(range(30, 110))
    assert row(simulated, "gamma=3").speedup == pytest.approx(vanilla / seconds, rel=2e-3)
    assert row(simulated, "gamma=3").theory_speedup is None or row(simulated, "gamma=3").isna().theory_speedup
    fixed = simulate(growing(tmp_path / "other"), gammas=[3])
    assert fixed.times.context_slope is None and row(fixed, "gamma=3").theory_speedup > 0


def profile(path, widths=(1, 2, 16), contexts=(0, 100), times=None):
    """A profile whose forwards lie on planes: 10 + 0.5 (width - 1) + 0.01 context, or 1, 0.25 and 0.002."""
    planes = {"target": (10, 0.5, 0.01), "draft": (1, 0.25, 0.002)}
    cells = [(width, context) for width in widths for context in contexts]
    forwards = []
    for model, (a, b, c) in planes.items():
        rows = [{"context": context, "width": w, "median": a + b * (w - 1) + c * context} for w, context in cells]
        forwards += [{"model": model, "runtime": "eager"} | row for row in rows]
    forwards += [forward | {"runtime": "graph", "median": 99.0} for forward in forwards]
    path.write_text(json.dumps({"times": times or {"t_draft": 2.0, "t_target": 11.0}, "forwards": forwards}))
    return path


def test_a_profile_by_width_and_context(tmp_path):
    path = str(profile(tmp_path / "p.json"))
    assert forward_times.from_option(path, None) == Times(2.0, 11.0)
    result = forward_times.from_option(path, None, by_context=True)
    expected = Times(1, 10, 0.5, draft_width_slope=0.25, context_slope=0.01, draft_context_slope=0.002, widest=16)
    assert {k: v for k, v in vars(result).items() if v is not None} == pytest.approx(
        {k: v for k, v in vars(expected).items() if v is not None}
    )
    for one in (profile(tmp_path / "q.json", widths=(1,)), profile(tmp_path / "r.json", contexts=(0,))):
        with pytest.raises(UserError, match="at one width or context only"):
            forward_times.from_option(str(one), None, by_context=True)
    (tmp_path / "s.json").write_text(json.dumps({"times": {"t_draft": 1, "t_target": 2}, "forwards": [{"width": "x"}]}))
    with pytest.raises(UserError, match="field required; make it again by `specbench profile`"):
        forward_times.from_option(str(tmp_path / "s.json"), None, by_context=True)


def test_a_batch_by_a_profile(tmp_path):
    """Every second place agrees; γ = 2 in a batch of 4 reads 12 tokens at once, and its drafts 4."""
    run = run_of(tmp_path / "run", {"sps[gamma=3]": [[(3, 1)] * 20]})
    simulated = simulate(run, given=str(profile(tmp_path / "p.json")), gammas=[2], options=Options(batch=4))
    starts = sum(range(30, 70, 2))
    seconds = 20 * (10 + 0.5 * 11 + 2 * (1 + 0.25 * 3)) + 4 * (0.01 * starts + 0.002 * (2 * starts + 20))
    assert row(simulated).tokens_per_s == pytest.approx(4 * 40 / seconds) and row(simulated).source == "projected"
    vanilla = 40 * (10 + 0.5 * 3) + 4 * 0.01 * sum(range(30, 70))
    assert row(simulated).speedup == pytest.approx(vanilla / seconds) and row(simulated).isna().speedup_e2e
    default = simulate(run, given=str(profile(tmp_path / "p.json")), options=Options(batch=4))
    assert default.table.setting.tolist() == ["gamma=1", "gamma=2", "gamma=3"]  # 4 · 5 tokens were not measured
    shown = call("simulate", run.folder, "--forward-times", tmp_path / "p.json", "--batch", "4").output
    assert "projected: sps[gamma=3]" in shown and "batch 4: always as many texts" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ({}, Options(batch=2), "decoded one text at a time, .* give --forward-times a profile's FILE.json"),
        (
            {"given": "t_draft=1,t_target=9,context_slope=0"},
            Options(batch=2),
            "lack draft_width_slope, draft_context_s",
        ),
        ({"given": "t_draft=1,t_target=9"}, Options(by_context=True), "context_slope is missing"),
        ({"given": "PROFILE", "gammas": [1, 4]}, Options(batch=4), "would read 20 tokens, .* measured one has 16"),
        ({"given": "PROFILE"}, Options(batch=9), "would read 18 tokens, .* measured one has 16"),
        ({"given": "PROFILE"}, Options(batch=4, oracle=True), "an oracle is for one text"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path, arguments, options, words):
    run = run_of(tmp_path / "run", {"sps[gamma=3]": [[(3, 1)] * 20]})
    if arguments.get("given") == "PROFILE":
        arguments = arguments | {"given": str(profile(tmp_path / "p.json"))}
    with pytest.raises(UserError, match=words) as error:
        simulate(run, **arguments, options=options)
    assert "\n" not in str(error.value)


def test_thresholds_are_not_of_a_batch(tmp_path):
    values = {"threshold": 0.7, "shortest": 4, "longest": 4, "stop_at_eos": True, "head": "auto"}
    options = {"settings": {"specdecpp": values}, "extra": {"predictions": [0.5, 0.5, 0.5, 0.5]}}
    run = run_of(tmp_path / "run", {"specdecpp": [[(4, 2)] * 30]}, **options)
    given = str(profile(tmp_path / "p.json"))
    with pytest.raises(UserError, match="at a threshold the texts of a batch draft different lengths"):
        simulate(run, given=given, thresholds=[0.5], options=Options(batch=2))
    assert simulate(run, given=given, options=Options(batch=2)).table.setting.str.startswith("gamma").all()


def test_the_prefill_inside_the_speedup(tmp_path):
    """Both prefills take 0.25 s in these records; 20 rounds of γ = 3 take 17 s each, 40 tokens of vanilla 12.5 s."""
    run = run_of(tmp_path / "run", {"vanilla": [[(0, 0)] * 40], "sps[gamma=3]": [[(3, 1)] * 20]})
    line = row(simulate(run, gammas=[3]), "gamma=3")
    assert line.speedup == pytest.approx(500 / 340) and line.speedup_e2e == pytest.approx(500.25 / 340.25)
    alone = run_of(tmp_path / "alone", {"sps[gamma=3]": [[(3, 1)] * 20]})
    assert row(simulate(alone, gammas=[3]), "gamma=3").isna().speedup_e2e
    given = "t_draft=1,t_target=10,prefill=0.5,draft_prefill=0.25"  # for a prompt of 30 tokens
    line = row(simulate(run, given=given, gammas=[3]), "gamma=3")
    assert line.speedup_e2e == pytest.approx((400 + 15) / (20 * 13 + 22.5)) and line.source == "projected"
    assert row(simulate(run, given="t_draft=1,t_target=10", gammas=[3]), "gamma=3").isna().speedup_e2e
