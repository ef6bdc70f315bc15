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
from specbench.base.arrivals import Arrivals
from specbench.config import UserError
from specbench.engine.rows import Batch
from specbench.measure import prepare
from specbench.results.load_folder import Unit
from specbench.studies import load as study
from specbench.studies.load import Load


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
    load = Load(plan, pair, 2, 8, Arrivals("constant"))
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
    key = {"method": name, "rate": rate, "repeat": 0}
    return pd.DataFrame([vars(one) | key | {"request": one.number} for one in served])


def table_of(steps, name="vanilla", rate=1.0):
    return pd.DataFrame([step | {"method": name, "rate": rate} for step in steps])


@pytest.mark.long
def test_littles_law(plan, pair, monkeypatch):
    """The mean number of requests in the system is their rate times their mean time there: counted by the steps."""
    load, clock = Load(plan, pair, 3, 40, Arrivals("poisson")), Clock(monkeypatch)
    for rate in (0.05, 0.2, 1.0):
        times = Arrivals("poisson").times(rate, 40, 3)
        served, steps = load.servers["sps"].serve(load.requests, load.prompts, times, clock)
        (row,) = analysis.figures(frame_of(served), table_of(steps), analysis.Slo()).to_dict("records")
        ends = np.array([one.rounds[-1] for one in served])
        moments = np.sort(np.concatenate([times, ends]))
        there = [((times <= t) & (ends > t)).sum() for t in moments[:-1]]
        assert row["in_system"] == pytest.approx((np.array(there) * np.diff(moments)).sum() / row["seconds"])
        decoding = sum(one.rounds[-1] - one.began for one in served) / row["seconds"]
        assert row["rows"] == pytest.approx(decoding)
        assert row["in_system"] == pytest.approx(len(served) / row["seconds"] * np.mean(ends - times))


@pytest.mark.long
def test_texts_do_not_depend_on_company(plan, pair):
    """At any rate, with any number of rows, and alone."""
    said = []
    for rows, rate in ((1, math.inf), (3, math.inf), (8, math.inf), (3, 50.0)):
        requests, _ = Load(plan, pair, rows, 20, Arrivals("poisson")).at(Unit("sps", rate))
        said.append([list(tokens) for tokens in requests.tokens])
    assert all(texts == said[0] for texts in said[1:])
    assert len({token for text in said[0] for token in text}) >= 6


def test_what_a_text_taught_is_forgotten(plan, pair, place):
    """The same request twice: the second text would be drafted whole from the first."""
    load = Load(
        plan_of(place, ["suffix"], assignments=["suffix.answers=9"], dtype="float64"), pair, 1, 1, Arrivals("constant")
    )
    method = load.servers["suffix"].method
    (one, other), _ = load.servers["suffix"].serve(load.requests * 2, load.prompts * 2, np.zeros(2))
    assert one.tokens == other.tokens and len(one.rounds) == len(other.rounds)
    method.drafter.remember(one.tokens)
    (sooner,), _ = load.servers["suffix"].serve(load.requests, load.prompts, np.zeros(1))
    assert len(sooner.rounds) == len(one.rounds), "what it knew before is forgotten too"
    assert len(one.rounds) > 3


def test_each_repeat_has_arrivals_and_seeds_of_its_own(plan, pair, monkeypatch):
    load, asked = Load(plan, pair, 2, 4, Arrivals("poisson")), []
    monkeypatch.setattr(load, "warm_up", lambda: None)
    monkeypatch.setattr(
        load.servers["sps"], "serve", lambda *_, seeds: asked.append((_[2].tolist(), list(seeds))) or ([], [])
    )
    for repeat in (0, 1, 0):
        load.at(Unit("sps", 5.0, repeat))
    first, second, again = asked
    assert first == again
    assert first[0] == Arrivals("poisson").times(5.0, 4, plan.seed).tolist() != second[0]
    assert all(one != other for one, other in zip(first[1], second[1], strict=True))


def test_poisson_arrivals():
    """Exponential gaps, the same for one seed; by the law of their mean and spread."""
    times = Arrivals("poisson").times(5.0, 4000, 7)
    gaps = np.diff(times)
    assert times[0] == 0 and (gaps > 0).all() and times.tolist() == Arrivals("poisson").times(5.0, 4000, 7).tolist()
    assert gaps.mean() == pytest.approx(0.2, rel=0.06) and gaps.std() == pytest.approx(0.2, rel=0.08)
    assert (gaps > 0.4).mean() == pytest.approx(math.exp(-2), abs=0.02)
    assert Arrivals("poisson").times(5.0, 4000, 8).tolist() != times.tolist()


def test_even_and_traced_arrivals(tmp_path):
    assert Arrivals("constant").times(4.0, 5, 0).tolist() == [0, 0.25, 0.5, 0.75, 1.0]
    trace = tmp_path / "trace.txt"
    trace.write_text("10\n11\n11\n14\n")
    traced = Arrivals.of(str(trace))
    stretched = traced.times(2.0, 4, 0)  # gaps 1, 0, 3 over (4 - 1) / 2 seconds
    assert stretched.tolist() == pytest.approx([0, 0.375, 0.375, 1.5])
    again = np.diff(traced.times(2.0, 9, 0))  # the mean gap stands before the first line
    assert again / again[0] == pytest.approx([1, 0, 3, 4 / 3, 1, 0, 3, 4 / 3]) and again.sum() == pytest.approx(4.0)
    trace.write_text("5\n5\n5\n6\n")
    assert Arrivals.of(str(trace)).digest != traced.digest
    with pytest.raises(UserError, match="its first 3 requests come at one time"):
        Arrivals.of(str(trace)).times(2.0, 3, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((text, "is not a trace of arrivals: it needs two different") for text in ("", "1\n", "\n", "5\n5\n5\n")),
        ("2\n1\n", "line 2: 1 is before the time of the line above; sort the lines"),
        *((f"1\n{text}\n", "line 2: .* is not a time; write seconds") for text in ("x", "nan", "inf", "1_0", "1 2")),
        *((f"{text}\n7\n", "line 1: .* is not a time; write seconds") for text in ("-1", "1e308", "0x1", "١", "1e999")),
    ],
)
def test_no_trace(tmp_path, content, message):
    path = tmp_path / "trace.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        Arrivals.of(str(path))


def test_the_saturation_is_found_by_bisection(plan, pair, monkeypatch):
    load = Load(plan, pair, 2, 10, Arrivals("constant"))
    asked = []

    def at(self, unit):
        rate = unit.rate
        asked.append(rate)
        rounds = [[1.0, 2.0]] * 9 + [[1.0, 2.0 if math.isfinite(rate) else 5.0]]
        waits = 0.0 if rate <= 1.3 else 9.0
        return pd.DataFrame(
            {"rounds": rounds, "came": 0.0, "began": waits, "tokens": [[1, 2]] * 10, "finish": "eos"}
        ), None

    monkeypatch.setattr(Load, "at", at)
    result = load.saturation("sps", lambda count: None)
    assert 1.3 - (2.2 - 0.5) / 2**study.BISECTIONS <= result <= 1.3
    assert len(asked) == 1 + study.BISECTIONS


def test_who_serves_nothing(place, pair):
    with pytest.raises(UserError, match=r"bandit learns from text to text.*so it serves no requests"):
        Load(plan_of(place, ["bandit"]), pair, 2, 8, Arrivals("constant"))


def requests_of(method, ends, repeat=0):
    """Requests that come a second apart and take `ends` seconds."""
    rows = [
        {"request": i, "came": float(i), "began": float(i), "rounds": [i + took], "tokens": [1], "finish": "eos"}
        for i, took in enumerate(ends)
    ]
    return pd.DataFrame(rows).assign(method=method, rate=1.0, repeat=repeat)


def test_how_much_sooner_by_hand():
    """Sums of the same requests; the interval is the jackknife's over tenths, here of two requests each."""
    rng = np.random.default_rng(0)
    base, mine = rng.uniform(1, 3, 20), rng.uniform(0.5, 1.5, 20)
    requests = pd.concat([requests_of("vanilla", base), requests_of("sps", mine)])
    steps = pd.DataFrame({"method": ["vanilla", "sps"], "rate": 1.0, "rows": 1, "seconds": 1.0})
    table = analysis.speedups(analysis.figures(requests, steps, analysis.Slo()), requests, "vanilla")
    row = table.set_index("method").loc["sps"]
    assert row.sooner == pytest.approx(base.sum() / mine.sum())
    tenths = [(base[i : i + 2].sum(), mine[i : i + 2].sum()) for i in range(0, 20, 2)]
    left_out = [math.log((base.sum() - b) / (mine.sum() - m)) for b, m in tenths]
    error = math.sqrt(9 / 10 * sum((one - np.mean(left_out)) ** 2 for one in left_out))
    width = math.log(row.sooner_high / row.sooner)
    assert 2.262 * error <= width <= 2.5 * error  # t with nine degrees of freedom, or somewhat fewer
    # A request that failed counts for neither.
    failed = requests.reset_index(drop=True)
    lost = (failed.method == "sps") & (failed.request == 3)
    failed.loc[lost, "finish"] = "error"
    failed.loc[lost, "rounds"] = failed.loc[lost, "rounds"].map(lambda rounds: [])
    table = analysis.speedups(analysis.figures(failed, steps, analysis.Slo()), failed, "vanilla").set_index("method")
    kept = np.arange(20) != 3
    assert math.isnan(table.throughput_ratio_low["sps"])  # one repeat
    assert table.sooner["sps"] == pytest.approx(base[kept].sum() / mine[kept].sum())
    assert table.errors.to_dict() == {"vanilla": 0, "sps": 1}


def test_repeats_are_measured_one_after_another():
    """Seconds and tokens of both count, and a queue that grows in one of them is told."""
    first = requests_of("vanilla", [1.0] * 8)
    second = requests_of("vanilla", [1.0] * 7 + [4.0], repeat=1)
    second["began"] += np.where(second.request >= 6, 2.0, 0.0)
    second["rounds"] = [[max(rounds[0], began)] for rounds, began in zip(second.rounds, second.began, strict=True)]
    steps = pd.DataFrame({"method": ["vanilla"], "rate": 1.0, "rows": 1, "seconds": 1.0})
    (row,) = analysis.figures(pd.concat([first, second]), steps, analysis.Slo()).to_dict("records")
    assert row["seconds"] == pytest.approx(8.0 + 11.0) and row["tokens_per_s"] == pytest.approx(16 / 19)
    assert not row["stable"] and analysis.is_stable(first)


def test_throughput_has_an_interval_over_repeats():
    """In three repeats, whose last requests end at 8, 9 and 10 s, and a second sooner."""
    parts = []
    for repeat, last in enumerate((1.0, 2.0, 3.0)):
        parts.append(requests_of("vanilla", [0.5] * 7 + [last], repeat))
        parts.append(requests_of("sps", [0.5] * 7 + [last - 1 + 0.5 * (repeat == 1)], repeat))
    requests = pd.concat(parts)
    steps = pd.DataFrame({"method": ["vanilla", "sps"], "rate": 1.0, "rows": 1, "seconds": 1.0})
    table = analysis.speedups(analysis.figures(requests, steps, analysis.Slo()), requests, "vanilla")
    row = table.set_index("method").loc["sps"]
    assert row.throughput_ratio == pytest.approx((8 + 9 + 10) / (7 + 8.5 + 9))
    assert 1.0 < row.throughput_ratio_low < row.throughput_ratio < row.throughput_ratio_high < 1.3


@pytest.mark.parametrize("step", ["reset", "rounds"])
def test_a_request_that_fails_is_a_row_and_the_others_go_on(plan, pair, monkeypatch, step):
    load = Load(plan, pair, 2, 9, Arrivals("constant"))
    sound = load.at(Unit("sps", 50.0))[0]
    lost = {i for i, request in enumerate(load.requests) if request.task == "pocket_mmlu"}
    method = type(load.servers["sps"].method)
    inner = getattr(method, step)

    def reset(self, task):
        if task == "pocket_mmlu":
            raise ZeroDivisionError("of a method")
        inner(self, task)

    def rounds(self, prompt, *rest):
        for number, one in enumerate(inner(self, prompt, *rest)):
            if number == 2 and prompt in [load.prompts[i] for i in lost]:
                raise ZeroDivisionError("of a method")
            yield one

    monkeypatch.setattr(method, step, {"reset": reset, "rounds": rounds}[step])
    requests, steps = load.at(Unit("sps", 50.0))
    assert 0 < len(lost) < 9 and set(requests.request[requests.finish == "error"]) == lost
    assert requests.error[requests.finish == "error"].str.contains("ZeroDivisionError: of a method").all()
    kept = requests.finish != "error"
    assert requests.tokens[kept].tolist() == sound.tokens[kept].tolist()
    assert (steps.committed.sum() == requests.tokens[kept].map(len).sum()) == (step == "reset")
    (row,) = analysis.figures(requests, steps, analysis.Slo()).to_dict("records")
    assert row["errors"] == len(lost) and row["requests"] == 9 and math.isfinite(row["e2e_p50"])


def test_logits_that_are_not_finite_end_a_request(plan, pair, monkeypatch):
    """On a GPU nothing waits for them within a round, so they are looked at when a text has ended."""
    from specbench.engine.clock import Highest
    from specbench.engine.types import NotFinite

    load = Load(plan, pair, 2, 8, Arrivals("constant"))
    monkeypatch.setattr(Highest, "not_finite", lambda self: NotFinite("draft", 7))
    requests, _ = load.at(Unit("sps", 50.0))
    assert (requests.finish == "error").all() and requests.error.str.contains("draft").all()


def command(place, *more):
    words = ["load", "--pair", f"target={place / 'target'},draft={place / 'draft'}", "--suite", str(place / "few.yaml")]
    return call(*words, "--rows", "3", "--requests", "9", "--device", "cpu", "--runtime", "static", *more)


def test_the_command_and_how_it_goes_on(place, tmp_path, monkeypatch):
    folder = tmp_path / "load"
    options = ["--rate", "5,20", "--out", str(folder), "--slo", "ttft=10", "--repeats", "2"]
    result = command(place, *options, "--to-saturation", "--cells", str(tmp_path / "cells.csv"))
    assert result.exit_code == 0, result.output
    assert "UNDER LOAD" in result.stdout and "vanilla: the queue does not grow up to" in result.stdout
    requests = pd.read_parquet(folder / "requests.parquet")
    assert "goodput" in result.stdout and max(map(len, result.stdout.splitlines())) <= 80
    assert len(requests) == 2 * 2 * 2 * 9 and set(requests.method) == {"vanilla", "sps"}
    cells = pd.read_csv(tmp_path / "cells.csv")
    assert set(cells.setting) == {"request_rate=5", "request_rate=20"} and (cells.method == "Target only").all()
    lost = next((folder / "parts").glob("sps-*-1.requests.parquet"))
    lost.unlink()
    decoded = []
    whole = Load.at
    monkeypatch.setattr(Load, "at", lambda self, unit: decoded.append(unit) or whole(self, unit))
    again = command(place, *options, "--to-saturation", "--format", "json")
    assert again.exit_code == 0 and [(unit.method, unit.repeat) for unit in decoded] == [("sps", 1)]
    saturation = json.loads(again.stdout)["saturation"]
    assert saturation.keys() == {"vanilla"}
    stretched = [saturation["vanilla"] / 4, saturation["vanilla"]]
    assert sorted(set(requests.rate)) == pytest.approx(stretched), (
        "5 and 20 requests a second, the highest as vanilla's"
    )
    other = command(place, *options, "--seed", "3", "--arrivals", "constant")
    assert other.exit_code == 2
    assert "was measured under other settings (seed, arrivals); choose another --out" in " ".join(other.stderr.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *((["--rate", text], f"--rate {text}: rates are from 1e-06") for text in ("0", "nan", "-inf", "1,nan", "1e9")),
        (["--rate", "1,inf", "--to-saturation"], "--to-saturation cannot stretch inf"),
        (["--rate", "fast"], "write numbers with commas between them"),
        (["--slo", "ttft"], "--slo ttft: write ttft=SECONDS,tpot=SECONDS, or one of them"),
        *((["--slo", text], f"--slo {text}: write") for text in ("", "ttft=-1", "ttft=inf", "ttft=1,ttft=2", "e2e=1")),
        (["--out", __file__], "is a file; choose a folder"),
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

    load = Load(plan, pair, 8, 5000, Arrivals("constant"))
    load.requests = [SimpleNamespace(**vars(request)) for request in load.requests]
    server = load.servers["sps"]
    server.serve(load.requests[:500], load.prompts[:500], np.zeros(500), length=8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    server.serve(load.requests, load.prompts, np.zeros(5000), length=8)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # kilobytes
