"""Throughput of fixed batches: texts as decoded one by one, clocks by hand."""

import json
import math
from pathlib import Path

import pytest
from jobs import drawn_arbitrator
from screens import call

from specbench.papers import published
from specbench.plan import resolve_plan
from specbench.report.views.throughput import sentences
from specbench.studies.load import Served, Server
from specbench.studies.throughput import Bench

# Figures


def test_figures_are_those_of_the_clock(pocket, monkeypatch):
    """Batches with made-up seconds and tokens: every document, in batches of every size, by every method alike."""
    plan = resolve_plan(["sps"], "smoke", "pocket", [], "vanilla", 2, temperature=1.0)
    bench = Bench(plan, pocket, [1, 3], 2)
    calls = []

    def pretend(self, requests, prompts, times, length=None, seeds=()):
        base = self.name == "vanilla"
        calls.append((base, [tuple(prompt) for prompt in prompts], seeds))
        assert times.tolist() == [0.0] * len(prompts)
        second = 0.5 if base else 0.25
        ends = [3.0, *(3.0 + second * len(prompts) * (i + 1) / 8 for i in range(8))]  # the prompts take 3 s
        soon = [3.0, *(3.0 + second * (i + 1) / 8 for i in range(8))]  # the first text is done before the others
        return [Served(i, one, 0.0, 0.0, ends if i else soon, [5] * 9) for i, one in enumerate(requests)], []

    monkeypatch.setattr(Server, "serve", pretend)
    advanced = []
    bench.carry_out(advanced.append)
    assert sum(advanced) == bench.total == 4 + 2 * (4 + 2)
    results = bench.result()
    for row in results.table.to_dict("records"):
        batches = {1: 4, 3: 2}[row["batch"]]
        assert (row["batches"], row["texts"]) == (batches, batches * row["batch"])
        assert row["tokens"] == 8 * row["texts"]  # the first is the prefill's
        a_token = (0.5 if row["method"] == "vanilla" else 0.25) / 8
        assert row["tokens_per_s"] == pytest.approx(1 / a_token)
        assert row["compared"] == 0  # sampled texts are not compared
        if row["method"] == "sps":
            bounds = [2, 2] if batches == 4 else [math.nan, math.nan]  # two batches have no interval
            found_bounds = [row[key] for key in ("speedup", "speedup_low", "speedup_high")]
            assert found_bounds == pytest.approx([2, *bounds], nan_ok=True)
        else:
            assert math.isnan(row["speedup"])
    timed = calls[4:]
    for one, other in zip(timed[::2], timed[1::2], strict=True):
        assert one[1:] == other[1:] and one[0] != other[0]
    assert len({one[0] for one in timed[::2]}) == 2  # now the one comes first, now the other
    every = {tuple(prompt) for prompt in bench.prompts}
    assert len(every) == 4
    for size in (1, 3):
        assert {prompt for _, prompts, _ in timed if len(prompts) == size for prompt in prompts} == every
    assert sentences(results) == ["sps: faster than the target alone at batch 1; no clear difference at batch 3."]


def test_a_lossless_text_that_is_another_is_found(pocket, monkeypatch):
    plan = resolve_plan(["sps"], "smoke", "pocket", [], "vanilla", 1)
    bench = Bench(plan, pocket, [2], 2)

    def pretend(self, requests, prompts, times, length=None, seeds=()):
        served = []
        for number, prompt in enumerate(prompts):
            at = next(i for i, one in enumerate(bench.prompts) if one is prompt)
            said = list(bench.alone["vanilla"][at])
            if self.name == "sps" and at == 0:
                said[2] = 7 if said[2] != 7 else 8
            served.append(Served(number, requests[number], 0.0, 0.0, [1.0, 2.0], said))
        return served, []

    monkeypatch.setattr(Server, "serve", pretend)
    bench.carry_out(lambda count: None)
    results = bench.result()
    rows = results.table.set_index("method")
    assert rows.equal.to_dict() == {"vanilla": 4, "sps": 2} and rows.compared.to_dict() == {"vanilla": 4, "sps": 4}
    assert results.bugs == len(results.divergences) == 2 and {
        divergence["at"] for divergence in results.divergences
    } == {2}


# The commands


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pocket) -> Path:
    """An arbitrator of the bundled pair, drawn at random, that says it was reinforced."""
    path = tmp_path_factory.mktemp("arbitrator") / "a.safetensors"
    return drawn_arbitrator(path, pocket, stage="rl", group=12, prompts=16)


@pytest.mark.long
def test_throughput_of_the_bundled_pair(trained, tmp_path):
    out = tmp_path / "cospec-table9.csv"
    given = ["--suite", "smoke", "--limit", 1, "--batch", "2,3", "--batches", 2]
    given += ["--set", f"cospec.arbitrator={trained}"]
    methods = ["--method", "cospec", "--method", "sps", "--set", "sps.gamma=3"]
    result = call("throughput", *given, *methods, "--out", out, "--format", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout[result.stdout.index("{") :])
    rows = {(one["batch"], one["method"]): one for one in report["table"]}
    assert list(rows) == [(size, name) for size in (2, 3) for name in ("vanilla", "cospec", "sps")]
    for (size, name), one in rows.items():
        assert (one["texts"], one["compared"], one["equal"]) == (2 * size,) * 3
        assert one["tokens"] == rows[size, "vanilla"]["tokens"] or name == "cospec"
        assert one["tokens_per_s"] == pytest.approx(one["tokens"] / one["seconds"])
        assert (one["tau"] == 1) == (name == "vanilla")
    assert report["divergences"] == [] and report["settings"]["sps"]["gamma"] == 3
    figures = {(figure.method, figure.setting, figure.metric): figure for figure in published.read_figures(out)}
    known = {(m, f"batch_size={n}", "Throughput") for m in ("Target only", "CoSpec") for n in (2, 3)}
    assert figures.keys() == known | {("CoSpec", f"batch_size={n}", "Speedup") for n in (2, 3)}
    (paper,) = published.papers(["cospec"])
    printed = {figure.key("") for figure in paper.figures(9)}
    assert {figure.key("") for figure in figures.values() if figure.setting == "batch_size=2"} <= printed
    assert {figure.unit for figure in figures.values()} == {"tokens/s", "x"}
    assert float(figures["CoSpec", "batch_size=3", "Speedup"].value) == pytest.approx(
        rows[3, "cospec"]["speedup"], rel=1e-5
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--batch", "0,2"), "batches have at least one text"),
        (("--batch", "two"), "write whole numbers"),
        (("--method", "bandit"), "bandit learns from text to text"),
        (("--batch", "1000000"), "texts together, of up to"),
        (("--set", "cospec.arbitrator=nowhere"), "there is no head nowhere"),
        (("--out", "nowhere/t.csv"), "there is no folder nowhere"),
    ],
)
def test_wrong_requests_are_one_line(options, words):
    result = call("throughput", "--suite", "smoke", "--limit", 1, *options)
    assert result.exit_code == 2 and words in result.stderr and len(result.stderr.strip().splitlines()) == 1
