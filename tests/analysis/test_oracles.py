"""Bounds in hindsight: the best lengths and the better of two drafters, by hand and against the naive way."""

import json

import naive_simulate
import pytest
from drafted import made, run_of, text_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from screens import call

from specbench.analysis import oracles
from specbench.analysis.forward_times import Times
from specbench.analysis.replay import Unknown
from specbench.analysis.simulate import Options, simulate
from specbench.analysis.simulated_rows import ALL
from specbench.config import UserError
from specbench.results.stored import StoredRun

SETTINGS = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
CHANCES = st.sampled_from([0.25, 0.75, 1.0])
SHAPES = st.lists(st.integers(0, 5).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), min_size=1, max_size=4)


def known(chance):
    return Unknown(chance, dict.fromkeys(["accepted", "rejected", "unread"], 0.5))


@st.composite
def recorded(draw):
    shapes = draw(SHAPES)
    return made(*shapes, cut=draw(st.integers(0, shapes[-1][1])))


def test_the_longest_accepted_draft_by_hand():
    """1 1 0 | 0 | 1 1: drafts of 2 and 0 that end in corrections, then one of 1, since the target brings the last."""
    laid = oracles.longest(text_of(made((3, 2), (2, 0), (4, 3), cut=2)), known(0.5))
    assert (laid.tokens, laid.rounds, laid.drafted, laid.accepted) == (6, 3, 3, 3)
    assert laid.lengths == {2: 1, 0: 1, 1: 1}
    # ? 1 1: accepted with 1/2, a draft of 2 and the target's token; else a round without, and one of 1.
    laid = oracles.longest(text_of(made((0, 0), (3, 3), cut=2)), known(0.5))
    assert (laid.rounds, laid.drafted) == (1.5, 0.5 * 2 + 0.5 * 1)


@SETTINGS
@given(recorded(), CHANCES, st.sampled_from([0.25, 1.0, 2.0]))
def test_no_lengths_are_faster(rows, chance, token):
    """Against every length at every position; as long as a drafted token takes no longer than an empty round."""
    text = text_of(rows)
    assume(text.agree)
    laid = oracles.longest(text, known(chance))
    seconds = Times(t_draft=token, t_target=2.0).text(laid, 0)
    assert seconds == pytest.approx(naive_simulate.fewest_seconds(rows, chance, 2.0, token))


@SETTINGS
@given(recorded(), recorded(), st.tuples(CHANCES, CHANCES), st.integers(1, 4), st.booleans())
def test_the_better_of_two_drafters(first, second, chances, gamma, second_is_cheaper):
    texts = tuple(text_of(rows) for rows in (first, second))
    size = min(len(text.agree) for text in texts)
    assume(size and len(texts[0].agree) == len(texts[1].agree))
    result = oracles.either(texts, gamma, tuple(map(known, chances)), second_is_cheaper)
    expected = naive_simulate.better_of_two([first, second], list(chances), gamma, second_is_cheaper)
    for laid, wanted in zip(result, expected, strict=True):
        assert (laid.rounds, laid.accepted) == pytest.approx((wanted["rounds"], wanted["accepted"]))
        assert laid.drafted == pytest.approx(gamma * laid.rounds)


# The command, on made runs.


def setting(result, name, task=ALL):
    table = result.table
    return table[(table.setting == name) & (table.task == task)].iloc[0]


def test_the_best_length_of_each_text(tmp_path):
    """A round takes 12.5 + 1.5 K. One text agrees in every second place, the other throughout: γ = 1 and γ = 3."""
    run = run_of(tmp_path / "run", {"vanilla": [[(0, 0)] * 40] * 2, "sps[gamma=3]": [[(3, 1)] * 20, [(3, 3)] * 10]})
    simulated = simulate(run, gammas=[1, 3], options=Options(oracle=True))
    text = setting(simulated, "oracle text")
    # 20 rounds of γ = 1 (14 s) of the first text's 40 tokens, 10 rounds of γ = 3 (17 s) of the second's.
    assert text.tau == pytest.approx(80 / 30) and text.tokens_per_s == pytest.approx(80 / (20 * 14 + 10 * 17))
    assert text.speedup == pytest.approx(80 * 12.5 / (20 * 14 + 10 * 17)) and text.source == "simulated"
    assert not text.best and setting(simulated, "gamma=3").best
    a_round = setting(simulated, "oracle round")
    assert a_round.acceptance_rate == 1 and a_round.discard_rate == 0 and a_round.tau >= text.tau
    assert a_round.tokens_per_s > text.tokens_per_s


def two(folder, **options):
    """Every second place of the first drafter agrees, and the first 3 of 4 of the second's; each has 40 tokens."""
    methods = {"vanilla": [[(0, 0)] * 40], "sps[gamma=3]": [[(3, 1)] * 20], "sps[gamma=4]": [[(4, 3)] * 10]}
    return run_of(folder, methods, **options)


def test_the_better_of_two_drafters_of_a_run(tmp_path):
    """At γ = 3 the second drafter is accepted further at each start: 3 of 3, and then the correction."""
    simulated = simulate(two(tmp_path / "run"), "sps[gamma=3]", gammas=[3], options=Options(second="sps[gamma=4]"))
    row = setting(simulated, "gamma=3 of two")
    assert row.tau == 4 and row.second_share == 1 and row.acceptance_rate == 1
    assert row.tokens_per_s == pytest.approx(4 / 17) and not row.best
    swapped = simulate(two(tmp_path / "other"), "sps[gamma=4]", gammas=[3], options=Options(second="sps[gamma=3]"))
    assert setting(swapped, "gamma=3 of two").second_share == 0
    assert setting(swapped, "gamma=3 of two").tau == 4


def test_two_runs_and_texts_that_differ(tmp_path):
    first, second = two(tmp_path / "a"), two(tmp_path / "b")
    options = Options(second="sps[gamma=4]", second_run=second)
    assert setting(simulate(first, "sps[gamma=3]", gammas=[3], options=options), "gamma=3 of two").tau == 4
    longer = run_of(tmp_path / "c", {"sps[gamma=4]": [[(4, 3)] * 11]})
    with pytest.raises(UserError, match="1 of 1 texts differ; the better of two drafters is known only for the same"):
        simulate(first, "sps[gamma=3]", gammas=[3], options=Options(second="sps[gamma=4]", second_run=longer))
    elsewhere = run_of(tmp_path / "d", {"sps[gamma=4]": [[(4, 3)] * 10]}, tasks=["two"])
    with pytest.raises(UserError, match="they have no text in common"):
        simulate(first, "sps[gamma=3]", gammas=[3], options=Options(second="sps[gamma=4]", second_run=elsewhere))


def test_a_text_of_no_document_of_the_run_is_damage(tmp_path):
    run = two(tmp_path / "run")
    path = run.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["requests"][0][1] = 77
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"is damaged: its manifest\.json has no document 0"):
        simulate(StoredRun(run.folder), "sps[gamma=3]", gammas=[3], options=Options(second="sps[gamma=4]"))


def test_the_command_says_what_is_known_in_hindsight_only(tmp_path):
    folder = two(tmp_path / "run").folder
    command = ["simulate", folder, "--method", "sps[gamma=3]", "--gamma", "2,3"]
    shown = " ".join(call(*command, "--oracle", "--second", "sps[gamma=4]").output.split())
    assert "simulated: sps[gamma=3]" in shown and "oracle round" in shown and "gamma=3 of two" in shown
    assert "oracle text: each text at its own best length" in shown and shown.count("only in hindsight") == 2
    assert "EAGLE" not in shown
    refused = call(*command, "--second-run", folder)
    assert refused.exit_code == 2 and "--second-run goes with --second METHOD" in " ".join(refused.output.split())


def test_the_error_for_eagle_is_printed(tmp_path):
    folder = run_of(tmp_path / "run", {"eagle3": [[(3, 1)] * 20]}).folder
    assert "1 to 3 % low" in " ".join(call("simulate", folder, "--gamma", "2").output.split())
