"""Throughput of fixed batches and the cost of serving: texts as decoded one by one, clocks and memory by hand."""

import contextlib
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from jobs import drawn_arbitrator
from screens import call
from transformers import DynamicCache

from specbench import config
from specbench.config import Setting, load_method
from specbench.measure import loop
from specbench.methods.collaborative.cospec_arbitrator import (
    find_arbitrator,
    own_parameters,
    with_backbone,
)
from specbench.papers import published
from specbench.papers.cells import labels_of
from specbench.plan import resolve_plan
from specbench.report.views.throughput import sentences
from specbench.results.stored import StoredRun
from specbench.studies.load import Served, Server
from specbench.studies.serving import first_token, forwards_a_round, latencies, tensor_memory
from specbench.studies.throughput import Bench


def spec_of(name, **settings):
    spec = load_method(name)
    return config.override(spec, {key: Setting(value=value, source="test") for key, value in settings.items()})


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


def test_only_methods_with_the_papers_settings_have_its_labels():
    specs = [
        spec_of("vanilla"),
        spec_of("sps", gamma=25).model_copy(update={"name": "sps[gamma=25]"}),
        spec_of("sps", gamma=4),
        spec_of("cospec", arbiter="always"),
        spec_of("cospec", arbitrator="mine").model_copy(update={"name": "mine"}),
        spec_of("cospec", threshold=0.5).model_copy(update={"name": "lower"}),
        spec_of("eagle3"),
    ]
    expected = {"vanilla": "Target only", "mine": "CoSpec"}
    assert labels_of(specs, "pocket", 9) == expected
    assert labels_of(specs, "pocket", 11) == {**expected, "sps[gamma=25]": "SpS", "eagle3": "EAGLE-3"}


# Serving


@pytest.fixture(scope="module")
def run(tmp_path_factory, trained) -> StoredRun:
    folder = tmp_path_factory.mktemp("serving") / "run"
    plan = resolve_plan(
        ["sps", "cospec"], "smoke", "pocket", ["sps.gamma=25", f"cospec.arbitrator={trained}"], "vanilla", 2
    )
    with contextlib.redirect_stderr(io.StringIO()):
        loop.execute(plan, folder, lambda _: True)
    return StoredRun(folder)


def bytes_of(model) -> int:
    unique = {one.data_ptr(): one.numel() * one.element_size() for one in [*model.parameters(), *model.buffers()]}
    return sum(unique.values())


@pytest.mark.long
def test_memory_is_that_of_weights_and_caches(run, pocket, trained, tmp_path):
    out = tmp_path / "t11.csv"
    result = call("serving", run.folder, "--out", out, "--format", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout[result.stdout.index("{") :])
    rows = {one["method"]: one for one in report["table"]}
    target, draft = (pocket.models[role] for role in ("target", "draft"))

    def a_token(model) -> int:
        c = model.config
        return 2 * 4 * c.num_hidden_layers * c.num_key_value_heads * (c.hidden_size // c.num_attention_heads)

    arbitrator, _ = find_arbitrator(str(trained), with_backbone(pocket, "draft"))
    arbitrator_own = sum(parameter.numel() * 4 for parameter in own_parameters(arbitrator).values())
    assert [rows[name]["target"] for name in rows] == [bytes_of(target)] * 3
    assert [rows[name]["draft"] for name in rows] == [0, bytes_of(draft), bytes_of(draft)]
    assert arbitrator_own <= rows["cospec"]["own"] < arbitrator_own + 20_000
    assert rows["vanilla"]["own"] < 20_000 and rows["sps"]["own"] < 20_000
    samples = run.samples()
    samples = samples[~samples.warmup]
    lengths = samples.prompt_tokens + samples.tokens.str.len()
    assert report["tokens"] == lengths[samples.method == "vanilla"].max()
    assert rows["vanilla"]["cache"] == a_token(target) * (report["tokens"] - 1)  # the last token is never read
    for name, per_token in (
        ("sps", a_token(target) + a_token(draft)),
        ("cospec", a_token(target) + 2 * a_token(draft)),
    ):
        assert rows[name]["cache"] > (per_token * 100 if report["tokens"] > 130 else per_token * 30)
        assert rows[name]["cache"] < per_token * (lengths.max() + 60)
    for row in rows.values():
        assert row["total"] == sum(row[part] for part in ("target", "draft", "own", "cache")) and row["peak"] is None
    figures = {(figure.method, figure.metric): float(figure.value) for figure in published.read_figures(out)}
    assert figures["SpS", "Serving memory"] == pytest.approx(rows["sps"]["total"] * 1e-9, rel=1e-5)
    assert figures["CoSpec", "RL rollouts per prompt"] == 12 and figures["CoSpec", "Prompts per update"] == 16
    assert figures["CoSpec", "Time to first token overhead"] == pytest.approx(
        100 * (rows["cospec"]["first_token"] - 1), rel=1e-5
    )
    (paper,) = published.papers(["cospec"])
    printed = {figure.key("") for figure in paper.figures(11)}
    extra = {key for key in figures if not any(one[3] == key[0] and one[5] == key[1] for one in printed)}
    assert extra == {("SpS", "Time to first token overhead")}
    report = call("serving", run.folder)
    assert report.exit_code == 0 and "first token [95 %]" in report.output and "0 (base)" in report.output
    assert "TTFT p50" in report.output and "TPOT p99" in report.output and "too few" in report.output


@pytest.mark.long
def test_forwards_a_round_are_counted(run):
    rounds = run.rounds().to_table().to_pandas()
    mine = rounds[(rounds.method == "cospec") & ~rounds.warmup & (rounds["round"] > 0)]
    asked = sum(1 for d, t in zip(mine.draft_tokens, mine.target_tokens, strict=True) if list(d) != list(t))
    assert forwards_a_round(run) == {"cospec": pytest.approx(asked / len(mine))} and asked


def test_each_tensor_counts_once_however_it_is_reached():
    shared, hidden, cached = torch.zeros(10), torch.zeros(7), torch.zeros(1, 1, 4, 3)
    cache = DynamicCache()
    cache.update(cached, cached.clone(), 0)
    linear = torch.nn.Linear(3, 2)

    class Slotted:
        __slots__ = ("inner",)

    slotted = Slotted()
    slotted.inner = torch.zeros(5)

    def closed():
        return hidden

    root = SimpleNamespace(one=[shared, shared[:3]], two={"a": (linear, closed)}, three=slotted, four=cache, up=None)
    root.up = root  # a circle
    result, of_cache = tensor_memory(root)
    assert sum(result.values()) == 4 * (10 + (6 + 2) + 7 + 5 + 24)
    assert sum(result[key] for key in of_cache) == 4 * 24


@pytest.mark.parametrize(("documents", "known"), [(5, []), (6, [50]), (99, [50]), (100, [50, 99])])
def test_latencies_are_percentiles_where_there_are_documents_enough(documents, known):
    """Prefills of 1, 2, 3 … ms, decoded twice; 2 ms for each of 4 tokens after the first, and a text of one token."""
    rows = [
        {"task": "a", "doc_id": n, "prefill_seconds": (n + 1) / 1000, "decode_seconds": 0.008, "tokens": [7] * 5}
        for n in range(documents)
    ]
    delays = latencies(pd.DataFrame([*rows, *rows]))
    for percent in (50, 99):
        ttft, tpot = delays[f"ttft_p{percent}"], delays[f"tpot_p{percent}"]
        if percent in known:
            expected = np.percentile(np.repeat(np.arange(documents) + 1, 2), percent) / 1000
            assert (ttft, tpot) == pytest.approx((expected, 0.002))
        else:
            assert math.isnan(ttft) and math.isnan(tpot)
    single = pd.DataFrame([row | {"tokens": [7], "decode_seconds": 0.0} for row in rows])
    assert math.isnan(latencies(single)["tpot_p50"])


def test_the_first_token_is_late_by_the_median_of_ratios():
    """Nine documents: the exact 95 % interval of a median is from the second to the eighth (binomial, 96.1 %)."""
    ratios = [1.9, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8]
    rows = []
    for doc, ratio in enumerate(ratios):
        for repeat in (0, 1):
            base = 0.01 * (doc + 1) * (1 + repeat)
            facts = {"task": "a", "doc_id": doc, "repeat": repeat}
            rows.append(facts | {"method": "vanilla", "prefill_seconds": base})
            rows.append(facts | {"method": "other", "prefill_seconds": base * ratio})
    rows.append({"task": "b", "doc_id": 0, "repeat": 0, "method": "other", "prefill_seconds": 9.0})  # unpaired
    result, documents = first_token(pd.DataFrame(rows), "vanilla", "other")
    assert documents == 9 and (result.value, result.low, result.high) == pytest.approx((1.5, 1.2, 1.8))
    few, documents = first_token(pd.DataFrame(rows[:4]), "vanilla", "other")
    assert few.value == pytest.approx(1.9) and documents == 1 and math.isnan(few.low)
    assert first_token(pd.DataFrame(rows), "vanilla", "none")[1] == 0
