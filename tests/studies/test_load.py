"""Requests that come while others are decoded: a hand-worked timeline, arrivals, and a folder that goes on."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from screens import call
from tiny_runs import TASKS, plan_of, save_pair, write_suite

from specbench.analysis import load as analysis
from specbench.config import UserError
from specbench.engine.rows import Batch
from specbench.measure import prepare
from specbench.studies import load as study
from specbench.studies.load import Load, arrivals


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    save_pair(folder, 8)
    write_suite(folder, TASKS, 4)
    return folder


@pytest.fixture(scope="module")
def plan(place):
    return plan_of(place, ["sps"], dtype="float64", runtime="static")


@pytest.fixture(scope="module")
def pair(plan):
    return prepare.load_models(plan)


class Clock:
    """A clock that only steps of batches move: each takes a second and a tenth for each row."""

    def __init__(self, monkeypatch):
        self.seconds = 100.0
        step = Batch.step

        def slow(batch):
            self.seconds += 1 + len(batch.rows) / 10
            return step(batch)

        monkeypatch.setattr(Batch, "step", slow)

    def __call__(self):
        return self.seconds


def test_a_timeline_by_hand(plan, pair, monkeypatch):
    """Two rows, texts of three tokens: a request waits for a row, joins between rounds, and idle time is skipped."""
    load = Load(plan, pair, 2, 8, "constant")
    server, clock = load.servers["vanilla"], Clock(monkeypatch)
    times = np.array([0.0, 0.0, 0.5, 20.0])
    served, steps = server.serve(load.requests[:4], load.prompts[:4], times, clock, length=3)
    # Steps of two rows take 1.2 s, of one 1.1 s. The third text joins when the first two have ended, after 3 steps.
    assert [one.began for one in served] == pytest.approx([0.0, 0.0, 3.6, 20.0])
    assert served[0].rounds == pytest.approx([1.2, 2.4, 3.6]) == served[1].rounds
    assert served[2].rounds == pytest.approx([4.7, 5.8, 6.9])
    assert served[3].rounds == pytest.approx([21.1, 22.2, 23.3])
    assert [step["rows"] for step in steps] == [2, 2, 2, 1, 1, 1, 1, 1, 1]
    assert [step["joined"] for step in steps] == [2, 0, 0, 1, 0, 0, 1, 0, 0]
    assert [step["queue"] for step in steps] == [0, 1, 1, 0, 0, 0, 0, 0, 0]  # noted when a step begins
    assert [step["committed"] for step in steps] == [step["rows"] for step in steps]
    assert steps[0]["fed"] == len(load.prompts[0]) + len(load.prompts[1]) and steps[1]["fed"] == 2
    frame = frame_of(served)
    times = analysis.latencies(frame)
    assert times.wait.tolist() == pytest.approx([0, 0, 3.1, 0])
    assert times.ttft.tolist() == pytest.approx([1.2, 1.2, 4.2, 1.1])
    assert times.tpot.tolist() == pytest.approx([1.2, 1.2, 1.1, 1.1])
    assert times.e2e.tolist() == pytest.approx([3.6, 3.6, 6.4, 3.3])
    (row,) = analysis.figures(frame, table_of(steps), analysis.Slo(ttft=2.0, tpot=1.15)).to_dict("records")
    assert row["seconds"] == pytest.approx(23.3) and row["tokens_per_s"] == pytest.approx(12 / 23.3)
    assert row["goodput"] == pytest.approx(1 / 23.3)  # the last one alone
    assert row["rows"] == pytest.approx((2 * 3.6 + 3.3 + 3.3) / 23.3)
    assert row["ttft_p50"] == pytest.approx(1.2) and row["e2e_p99"] == pytest.approx(
        np.percentile([3.6, 3.6, 6.4, 3.3], 99)
    )
    assert row["gap_p95"] == pytest.approx(np.percentile([1.2] * 4 + [1.1] * 4, 95))


def frame_of(served, name="vanilla", rate=1.0):
    return pd.DataFrame([vars(one) | {"method": name, "rate": rate} for one in served])


def table_of(steps, name="vanilla", rate=1.0):
    return pd.DataFrame([step | {"method": name, "rate": rate} for step in steps])


def test_littles_law(plan, pair, monkeypatch):
    """The mean number of requests in the system is their rate times their mean time there: counted by the steps."""
    load, clock = Load(plan, pair, 3, 40, "poisson"), Clock(monkeypatch)
    for rate in (0.05, 0.2, 1.0):
        times = arrivals("poisson", rate, 40, 3)
        served, steps = load.servers["sps"].serve(load.requests, load.prompts, times, clock)
        (row,) = analysis.figures(frame_of(served), table_of(steps), analysis.Slo()).to_dict("records")
        ends = np.array([one.rounds[-1] for one in served])
        moments = np.sort(np.concatenate([times, ends]))
        there = [((times <= t) & (ends > t)).sum() for t in moments[:-1]]
        assert row["in_system"] == pytest.approx((np.array(there) * np.diff(moments)).sum() / row["seconds"])
        decoding = sum(one.rounds[-1] - one.began for one in served) / row["seconds"]
        assert row["rows"] == pytest.approx(decoding)
        assert row["in_system"] == pytest.approx(len(served) / row["seconds"] * np.mean(ends - times))


def test_texts_do_not_depend_on_company(plan, pair):
    """At any rate, with any number of rows, and alone."""
    said = []
    for rows, rate in ((1, math.inf), (3, math.inf), (8, math.inf), (3, 50.0)):
        requests, _ = Load(plan, pair, rows, 20, "poisson").at("sps", rate)
        said.append([list(tokens) for tokens in requests.tokens])
    assert all(texts == said[0] for texts in said[1:])
    assert len({token for text in said[0] for token in text}) >= 6


def test_poisson_arrivals():
    """Exponential gaps, the same for one seed; by the law of their mean and spread."""
    times = arrivals("poisson", 5.0, 4000, 7)
    gaps = np.diff(times)
    assert times[0] == 0 and (gaps > 0).all() and times.tolist() == arrivals("poisson", 5.0, 4000, 7).tolist()
    assert gaps.mean() == pytest.approx(0.2, rel=0.06) and gaps.std() == pytest.approx(0.2, rel=0.08)
    assert (gaps > 0.4).mean() == pytest.approx(math.exp(-2), abs=0.02)
    assert arrivals("poisson", 5.0, 4000, 8).tolist() != times.tolist()


def test_even_and_traced_arrivals(tmp_path):
    assert arrivals("constant", 4.0, 5, 0).tolist() == [0, 0.25, 0.5, 0.75, 1.0]
    trace = tmp_path / "trace.txt"
    trace.write_text("10\n11\n11\n14\n")
    stretched = arrivals(str(trace), 2.0, 4, 0)  # gaps 1, 0, 3 over (4 - 1) / 2 seconds
    assert stretched.tolist() == pytest.approx([0, 0.375, 0.375, 1.5])
    assert len(arrivals(str(trace), 2.0, 11, 0)) == 11


@pytest.mark.parametrize("content", ["", "1\n", "2\n1\n", "1\nx\n", "1\nnan\n"])
def test_no_trace(tmp_path, content):
    path = tmp_path / "trace.txt"
    path.write_text(content)
    with pytest.raises(UserError, match="is no trace of arrivals"):
        arrivals(str(path), 1.0, 3, 0)


def test_a_trace_that_is_not_there():
    with pytest.raises(UserError, match="choose poisson, constant or a file"):
        arrivals("weibull", 1.0, 3, 0)


def test_the_saturation_is_found_by_bisection(plan, pair, monkeypatch):
    load = Load(plan, pair, 2, 10, "constant")
    asked = []

    def at(self, name, rate):
        asked.append(rate)
        rounds = [[1.0, 2.0]] * 9 + [[1.0, 2.0 if math.isfinite(rate) else 5.0]]
        waits = 0.0 if rate <= 1.3 else 9.0
        return pd.DataFrame({"rounds": rounds, "came": 0.0, "began": waits, "tokens": [[1, 2]] * 10}), None

    monkeypatch.setattr(Load, "at", at)
    found = load.saturation("sps", lambda count: None)
    assert 1.3 - (2.2 - 0.5) / 2**study.BISECTIONS <= found <= 1.3
    assert len(asked) == 1 + study.BISECTIONS


def test_who_serves_nothing(place, pair):
    with pytest.raises(UserError, match=r"bandit learns from text to text.*so it serves no requests"):
        Load(plan_of(place, ["bandit"]), pair, 2, 8, "constant")


def command(place, *more):
    words = ["load", "--pair", f"target={place / 'target'},draft={place / 'draft'}", "--suite", str(place / "few.yaml")]
    return call(*words, "--rows", "3", "--requests", "9", "--device", "cpu", "--runtime", "static", *more)


def test_the_command_and_how_it_goes_on(place, tmp_path, monkeypatch):
    folder = tmp_path / "load"
    options = ["--rate", "5,20", "--out", str(folder), "--slo", "ttft=10"]
    result = command(place, *options, "--to-saturation", "--cells", str(tmp_path / "cells.csv"))
    assert result.exit_code == 0, result.output
    assert "UNDER LOAD" in result.stdout and "vanilla: the queue does not grow up to" in result.stdout
    requests = pd.read_parquet(folder / "requests.parquet")
    assert len(requests) == 2 * 2 * 9 and set(requests.method) == {"vanilla", "sps"}
    cells = pd.read_csv(tmp_path / "cells.csv")
    assert set(cells.setting) == {"request_rate=5", "request_rate=20"} and (cells.method == "Target only").all()
    lost = next((folder / "parts").glob("sps-*.requests.parquet"))
    lost.unlink()
    decoded = []
    whole = Load.at
    monkeypatch.setattr(Load, "at", lambda self, *key: decoded.append(key) or whole(self, *key))
    again = command(place, *options, "--to-saturation", "--format", "json")
    assert again.exit_code == 0 and [name for name, _ in decoded] == ["sps"]
    assert json.loads(again.stdout)["saturation"].keys() == {"vanilla"}
    other = command(place, *options, "--seed", "3")
    assert other.exit_code == 2 and "was measured under other settings; choose another --out" in other.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rate", "0"], "--rate 0: rates are above 0"),
        (["--rate", "fast"], "write numbers with commas between them"),
        (["--slo", "ttft"], "--slo ttft: write ttft=SECONDS,tpot=SECONDS, or one of them"),
        (["--slo", "ttft=-1"], "--slo ttft=-1: write"),
        (["--arrivals", "gamma"], "choose poisson, constant or a file"),
        (["--runtime", "openvino"], "--runtime openvino computes no batches; use eager or static"),
    ],
)
def test_bad_input(place, options, message):
    result = command(place, *options)
    assert result.exit_code == 2 and message in " ".join(result.stderr.split())


@pytest.mark.long
def test_many_requests_do_not_fill_the_memory(plan, pair):
    """5,000 texts through eight rows: caches and greenlets of texts that have ended are used again."""
    import resource

    load = Load(plan, pair, 8, 5000, "constant")
    load.requests = [SimpleNamespace(**vars(one)) for one in load.requests]
    server = load.servers["sps"]
    server.serve(load.requests[:500], load.prompts[:500], np.zeros(500), length=8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    server.serve(load.requests, load.prompts, np.zeros(5000), length=8)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # kilobytes
