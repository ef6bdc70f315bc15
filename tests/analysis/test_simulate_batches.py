"""Simulations of several batch sizes next to a server's steps: by hand, from made files."""

import json
import math

import pandas as pd
import pytest
from drafted import run_of
from screens import call

from specbench.analysis import forward_times
from specbench.analysis.load import by_rows
from specbench.analysis.simulate_batches import FEWEST, simulate_batches
from specbench.analysis.simulated_rows import ALL
from specbench.config import UserError

# A forward of the target over n tokens of texts with c cached in all takes 8 + 0.5 n + 0.001 c, the draft's 1 + 0.1 n.
CELLS = [(rows, width, context) for rows in (1, 4) for width in (1, 3, 6) for context in (100, 200)]


def profile(path, rows=True):
    forwards = []
    for model, (alone, token, cached) in {"target": (8, 0.5, 0.001), "draft": (1, 0.1, 0.0)}.items():
        for texts, width, context in CELLS:
            seconds = alone + token * texts * width + cached * texts * context
            forwards.append(
                {
                    "model": model,
                    "rows": texts,
                    "width": width,
                    "context": context,
                    "median": seconds,
                    "low": 0,
                    "high": 0,
                }
            )
    facts = {"times": {"t_draft": 9.0, "t_target": 9.0, "overhead": 2.0}, "models": {}}
    path.write_text(json.dumps(facts | ({"batches": forwards} if rows else {})))
    return forwards


def steps_of(method, rows, count, seconds, committed, joined=0):
    row = {"method": method, "rate": math.inf, "repeat": 0, "rows": rows, "seconds": seconds, "committed": committed}
    return [row | {"joined": joined, "began": 0.0, "queue": 0, "fed": 0, "step": n} for n in range(count)]


def server(folder, run, values):
    """A folder of `load`, of vanilla and of sps with these settings, under the name `mine`."""
    folder.mkdir()
    methods = [{"name": "vanilla", "method": "vanilla"}, {"name": "mine", "method": "sps", "settings": {}}]
    methods[1]["settings"] = {key: {"value": value} for key, value in values.items()}
    plan = run.manifest["plan"] | {"methods": methods, "baseline": "vanilla", "baselines": {}}
    asked = {"rows": 4, "requests": 9, "arrivals": "poisson", "trace": ""}
    (folder / "load.json").write_text(json.dumps(run.manifest | {"plan": plan, "load": asked}))
    rows = steps_of("vanilla", 4, FEWEST, 10.0, 4) + steps_of("mine", 4, FEWEST, 16.0, 8)
    rows += steps_of("mine", 4, 50, 1.0, 4, joined=4) + steps_of("mine", 2, FEWEST - 1, 1.0, 4)
    pd.DataFrame(rows).to_parquet(folder / "steps.parquet")


def test_steps_by_rows():
    steps = pd.DataFrame(
        steps_of("vanilla", 2, 3, 2.0, 2) + steps_of("sps", 2, 4, 3.0, 6) + steps_of("sps", 1, 1, 1.0, 3)
    )
    steps = pd.concat([steps, pd.DataFrame(steps_of("sps", 2, 9, 50.0, 2, joined=1))])
    table = by_rows(steps, "vanilla").set_index(["method", "rows"])
    assert table.steps.to_dict() == {("sps", 1): 1, ("sps", 2): 4, ("vanilla", 2): 3}
    assert table.tokens_per_s[("sps", 2)] == 2 and table.tokens_per_s[("vanilla", 2)] == 1
    assert table.speedup[("sps", 2)] == 2 and math.isnan(table.speedup[("sps", 1)])


def test_the_costs_of_a_step(tmp_path):
    costs = forward_times.step_costs(pd.DataFrame(profile(tmp_path / "p.json")))
    assert costs == pytest.approx({"token": 0.5 / 8.5, "draft": 1.1 / 8.5, "draft_token": 0.1 / 8.5})


def test_batches_by_hand(tmp_path):
    """γ = 3 commits two tokens a round, in every text; a step of n texts: the forwards above, and 2 s besides."""
    profile(tmp_path / "p.json")
    run = run_of(tmp_path / "run", {"vanilla": [[(0, 0)] * 40] * 2, "sps[gamma=3]": [[(3, 1)] * 20] * 2})
    server(tmp_path / "load", run, {"gamma": 3, "length": "fixed", "stop_at_eos": False})
    given = str(tmp_path / "p.json")
    figures = simulate_batches(run, "sps[gamma=3]", given, [1, 3], [1, 4], tmp_path / "load")
    table = figures.table[figures.table.task == ALL].set_index(["batch", "setting"])
    for texts in (1, 4):
        vanilla = speculative = 0.0
        for prompt in (30, 31):
            vanilla += sum(8 + 0.5 * texts + 0.001 * texts * (prompt + at) + 2 for at in range(40))
            rounds = (
                8 + 0.5 * 4 * texts + 0.001 * texts * (prompt + 2 * at) + 2 + 3 * (1 + 0.1 * texts) for at in range(20)
            )
            speculative += sum(rounds)
        row = table.loc[(texts, "gamma=3")]
        assert row.speedup == pytest.approx(vanilla / speculative, rel=0.01)  # contexts begin with the prefill's token
        assert row.tokens_per_s == pytest.approx(80 * texts / speculative, rel=0.01)
    row = table.loc[(4, "gamma=3")]
    assert (row.served_tokens_per_s, row.served_speedup) == (0.5, 0.5 / 0.4)
    assert row.error == pytest.approx(row.speedup / 1.25 - 1)
    assert table.served_speedup.drop((4, "gamma=3")).isna().all()  # another length, or too few steps


def test_the_command(tmp_path):
    profile(tmp_path / "p.json")
    run = run_of(tmp_path / "run", {"vanilla": [[(0, 0)] * 40], "sps[gamma=3]": [[(3, 1)] * 20]})
    server(tmp_path / "load", run, {"gamma": 3, "length": "fixed", "stop_at_eos": False})
    words = ["simulate", run.folder, "--forward-times", tmp_path / "p.json", "--batch", "1,4"]
    result = call(*words, "--load", tmp_path / "load")
    assert result.exit_code == 0, result.output
    assert "replayed in batches" in result.output and "served speedup" in result.output
    assert "off by" in result.output and max(map(len, result.output.splitlines())) <= 80
    plain = call(*words, "--format", "json")
    assert {row["batch"] for row in json.loads(plain.stdout)["table"]} == {1, 4}
    for options, message in (
        (["--oracle"], "several batches go with"),
        (["--load", tmp_path], "holds no server's steps; `specbench load --out"),
    ):
        result = call(*words, *options)
        assert result.exit_code == 2 and message in " ".join(result.stderr.split())
    result = call("simulate", run.folder, "--batch", "0")
    assert result.exit_code == 2 and "batches have at least one text" in result.stderr


def test_a_damaged_server_is_one_line(tmp_path):
    profile(tmp_path / "p.json")
    run = run_of(tmp_path / "run", {"vanilla": [[(0, 0)] * 9], "sps[gamma=3]": [[(3, 1)] * 9]})
    server(tmp_path / "load", run, {})
    stored = tmp_path / "load" / "load.json"
    whole, steps = json.loads(stored.read_text()), pd.read_parquet(tmp_path / "load" / "steps.parquet")
    wrong = {
        "load.json was written by an earlier version": {"plan": {"methods": [{"name": 1}]}},
        "load.json: load.rows: input should be a valid integer": whole | {"load": whole["load"] | {"rows": "x"}},
        "load.json: plan: methods": whole | {"plan": whole["plan"] | {"methods": [{"name": 1}]}},
        "it has steps of 'mine'": whole | {"plan": whole["plan"] | {"methods": whole["plan"]["methods"][:1]}},
    }
    for message, content in wrong.items():
        stored.write_text(json.dumps(content))
        with pytest.raises(UserError, match=message):
            simulate_batches(run, None, str(tmp_path / "p.json"), [3], [1, 4], tmp_path / "load")
    stored.write_text(json.dumps(whole))
    for message, frame in {
        "another kind of file: it has no column 'rows'": steps.drop(columns="rows"),
        "more rows joined": steps.assign(joined=9),
        "seconds is -1": steps.assign(seconds=-1.0),
        "committed lacks values": steps.assign(committed=None),
        "it has no steps": steps.iloc[:0],
    }.items():
        frame.to_parquet(tmp_path / "load" / "steps.parquet")
        with pytest.raises(UserError, match=message):
            simulate_batches(run, None, str(tmp_path / "p.json"), [3], [1, 4], tmp_path / "load")


@pytest.mark.parametrize(
    "change",
    [
        *({"median": value} for value in (0, -1.0, math.nan, "x", None)),
        *({name: 0} for name in ("rows", "width")),
        *({name: 1.5} for name in ("rows", "width", "context")),
        *({"model": value} for value in (None, [], {})),
        {"runtime": 3},
    ],
    ids=str,
)
def test_a_damaged_profile_is_one_line(tmp_path, change):
    forwards = profile(tmp_path / "p.json")
    forwards[3] = forwards[3] | change
    facts = {"times": {"t_draft": 9.0, "t_target": 9.0}, "models": {}, "batches": forwards}
    (tmp_path / "p.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=r"p\.json.*make it again"):
        forward_times.from_option(str(tmp_path / "p.json"), None, by_context=True)
