"""A modelled channel between draft and target: by hand, and what is refused."""

import json
import math

import pytest
from drafted import run_of
from refusals import one_line_error
from screens import call

from specbench.analysis.simulate import Options, simulate
from specbench.analysis.simulated_rows import ALL
from specbench_extras.network.analysis import CHANNEL, from_option, over_network
from specbench_extras.network.view import view

# A round with K drafted takes 12.5 + 1.5 K seconds, a vanilla token 12.5; every second position agrees.
METHODS = {"vanilla": [[(0, 0)] * 40], "sps[gamma=3]": [[(3, 1)] * 20]}


def table_of(figures):
    return figures.table[figures.table.task == ALL].set_index("setting")


def test_a_constant_channel_by_hand(tmp_path):
    """A round trip of 5 s and 2 s for each drafted token: 32 bits at 16 bits a second."""
    simulation = simulate(run_of(tmp_path / "run", METHODS), "sps[gamma=3]", None, [1, 3])
    simulated = over_network(simulation, from_option("rtt=5,rate=16", greedy=True))
    table = table_of(simulated)
    seconds = {1: 12.5 + 1.5 + 5 + 2, 3: 12.5 + 4.5 + 5 + 6}  # of a round, which commits two tokens
    for gamma, whole in seconds.items():
        row = table.loc[f"gamma={gamma}"]
        assert row.modelled_tokens_per_s == pytest.approx(2 / whole)
        assert row.modelled_speedup == pytest.approx(2 * 12.5 / whole)
        assert row.network_share == pytest.approx((5 + 2 * gamma) / whole)
        assert row.speedup == pytest.approx(2 * 12.5 / (12.5 + 1.5 * gamma))  # without a network, as simulated
        assert (row.tau, row.acceptance_rate) == (pytest.approx(2), pytest.approx(1 / gamma))
    assert table.best.tolist() == [True, False, False]
    # α = 0.5, c = (1 + 2) / 12.5, and 5 / 12.5 a round: γ = 1: 1.5 / 1.64, γ = 3: 1.875 / 2.12.
    assert simulated.chosen == (1,) and table.modelled_speedup[CHANNEL] == table.modelled_speedup["gamma=1"]
    # The same with a bit a token, and a round trip of 50 s: 1.5 / 5.08 and 1.875 / 5.24.
    assert over_network(simulation, from_option("rtt=50,rate=16,bits=1", greedy=True)).chosen == (3,)


def test_a_trace_by_hand(tmp_path):
    """A quarter of the time without a round trip, the rest with one of 50 s; sending takes no time to speak of."""
    path = tmp_path / "trace.csv"
    path.write_text("seconds,rtt,rate\n30,0,1e12\n90,50,1e12\n")
    shapes = {"vanilla": [[(0, 0)] * 40], "sps[gamma=3]": [[(3, 3), (3, 0)] * 8]}
    simulation = simulate(run_of(tmp_path / "run", shapes), "sps[gamma=3]", None, [1, 3])
    simulated = over_network(simulation, from_option(f"{path},bits=1", greedy=True))
    table, plain = table_of(simulated), simulation.table[simulation.table.task == ALL].set_index("setting")
    for setting in ("gamma=1", "gamma=3"):
        tau, rate = plain.tau[setting], plain.tokens_per_s[setting]
        slow = tau / (tau / rate + 50)
        assert table.modelled_tokens_per_s[setting] == pytest.approx(rate / 4 + slow * 3 / 4)
    # α = 24 / 32: without a round trip 1.75 / 1.08 against 2.734 / 1.24, with one 1.75 / 5.08 against 2.734 / 5.24.
    assert simulated.chosen == (3, 3)
    dear = over_network(simulation, from_option(f"{path},bits=1e13", greedy=True))  # 10 s a drafted token
    assert dear.chosen == (1, 3)  # 1.75 / 1.88 against 2.734 / 3.64; 1.75 / 5.88 against 2.734 / 7.64


def test_lengths_follow_the_channel(tmp_path):
    """Short drafts while the round trip is short, long ones while it is long, as if tokens were independent.

    Here they are not, of three never more than one is accepted: so one token at all times would be better.
    """
    path = tmp_path / "trace.csv"
    path.write_text("rtt,rate,seconds\n0,1e12,1\n400,1e12,1\n")
    simulation = simulate(run_of(tmp_path / "run", METHODS), "sps[gamma=3]", "t_draft=6,t_target=12,vanilla=12", [1, 3])
    simulated = over_network(simulation, from_option(str(path), greedy=True))
    table = table_of(simulated)
    assert simulated.chosen == (1, 3)  # c = 0.5: 1.5 / 1.5 against 1.875 / 2.5; 1.5 / 34.8 against 1.875 / 35.8
    rates = [2 / (12 + 6), 2 / (12 + 18 + 400)]
    assert table.modelled_tokens_per_s[CHANNEL] == pytest.approx(sum(rates) / 2)
    assert table.modelled_tokens_per_s["gamma=1"] == pytest.approx((2 / (12 + 6) + 2 / (12 + 6 + 400)) / 2)
    assert table.best.tolist() == [True, False, False]
    # Committed tokens weigh: nearly all come while the channel is good, where 1 of 1 is drafted and accepted.
    assert table.acceptance_rate[CHANNEL] == pytest.approx((rates[0] + rates[1]) / (rates[0] + 3 * rates[1]))


def test_settings_that_draft_nothing_accept_nothing(tmp_path):
    """Of rejected drafts the best of each round, in hindsight, is none: a token in 12.5 s and a round trip of 5 s."""
    shapes = {"vanilla": [[(0, 0)] * 40], "sps[gamma=3]": [[(3, 0)] * 20]}
    simulation = simulate(run_of(tmp_path / "run", shapes), "sps[gamma=3]", None, [1, 3], options=Options(oracle=True))
    row = table_of(over_network(simulation, from_option("rtt=5,rate=16", greedy=True))).loc["oracle round"]
    assert math.isnan(row.acceptance_rate) and row.modelled_tokens_per_s == pytest.approx(1 / 17.5)


def test_thresholds_alone_give_no_length_by_channel(tmp_path):
    """Stopped by 1 - 0.5 > 0.4 after the second of two accepted tokens: 12 + 2 · 6 s, and 5 + 2 · 2 s away."""
    settings = {"specdecpp": {"threshold": 0.7, "shortest": 4, "longest": 4, "stop_at_eos": True, "head": "auto"}}
    predicted = {"settings": settings, "extra": {"predictions": [0.5, 0.5, 0.5, 0.5]}}
    run = run_of(tmp_path / "run", {"specdecpp": [[(4, 2)] * 30]}, **predicted)
    simulation = simulate(run, None, "t_draft=6,t_target=12,vanilla=12", [], [0.4])
    figures = over_network(simulation, from_option("rtt=5,rate=16", greedy=True))
    table = table_of(figures)
    assert figures.chosen == () and list(table.index) == ["threshold=0.4"] and not table.best.any()
    assert table.modelled_tokens_per_s["threshold=0.4"] == pytest.approx(3 / (24 + 5 + 4))
    notes = " ".join(view(figures).notes)
    assert CHANNEL not in notes and "without a network, projected" in notes and "ms, given: draft 6e+03" in notes


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("rtt=0.05", "rate"),
        ("rtt=-1,rate=5", "rtt"),
        ("rtt=nan,rate=5", "rtt"),
        ("rtt=1,rate=0", "rate"),
        ("rtt=1,rate=x", "write rtt=SECONDS,rate=BITS_PER_SECOND"),
        ("rtt=1,speed=2", "there is no 'speed'; there are rtt, rate, bits, seconds"),
        ("rtt=1,rate=2,bits=0", "bits must be above 0"),
        ("nothing.csv", "there is no file nothing.csv"),
        ("trace.csv,rtt=1", "only bits=BITS goes with it"),
    ],
)
def test_a_bad_channel_is_one_line(tmp_path, monkeypatch, option, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text("seconds,rtt,rate\n1,0,5\n")
    with one_line_error(words):
        from_option(option, greedy=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "states"),
        ("seconds,rtt,rate\n", "states"),
        ("seconds,rtt,rate\n1,0,5\n1,x,5\n", "line 3: a value is not a number"),
        ("seconds,rtt,rate\n1,0,5,7\n", "line 2: a value is not a number"),
        ("seconds,rtt,rate\n1,0\n", "line 2: a value is not a number"),
        ("seconds,rtt\n1,0\n", "rate"),
        ("seconds,rtt,rate,x\n1,0,5,7\n", "x"),
        ("seconds,rtt,rate\n0,0,5\n", "seconds"),
    ],
)
def test_a_file_that_is_no_trace_is_one_line(tmp_path, text, words):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with one_line_error(words):
        from_option(str(path), greedy=True)


def test_the_command(tmp_path):
    folder = run_of(tmp_path / "run", METHODS).folder
    words = ["analyze", "network", folder, "--method", "sps[gamma=3]", "--gamma", "1,3", "--channel", "rtt=5,rate=16"]
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert "MODELLED NETWORK" in result.output and "modelled, not measured" in " ".join(result.output.split())
    assert max(map(len, result.output.splitlines())) <= 80
    report = json.loads(call(*words, "--format", "json").stdout)
    assert report["source"] == "simulated, over a modelled network" and report["chosen"] == [1]
    assert (
        call(*words, "--format", "csv").stdout.splitlines()[0].startswith("task,setting,tau,acceptance_rate,speedup,")
    )
    assert call(*words, "--second-run", folder).exit_code == 2
    assert call(*words[:3]).exit_code == 2, "no channel"


def test_the_earlier_option_names_the_command(tmp_path):
    folder = run_of(tmp_path / "run", METHODS).folder
    refused = call("simulate", folder, "--network", "rtt=5,rate=16")
    assert refused.exit_code == 2
    assert f"`specbench analyze network {folder} --channel rtt=5,rate=16`" in " ".join(refused.stderr.split())
    assert "--network" not in call("simulate", "--help").stdout


def test_sampled_drafts_say_what_they_send():
    with one_line_error("add bits=BITS of a drafted token"):
        from_option("rtt=1,rate=5", greedy=False)
    assert from_option("rtt=1,rate=5,bits=8", greedy=False).bits == 8
