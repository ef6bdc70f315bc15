"""The cost of serving: memory and delays by hand."""

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

from specbench.measure import loop
from specbench.methods.collaborative.cospec_arbitrator import find_arbitrator, own_parameters, with_backbone
from specbench.papers import published
from specbench.plan import resolve_plan
from specbench.results.stored import StoredRun
from specbench_extras.serving.study import first_token, forwards_a_round, latencies, tensor_memory


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pocket) -> Path:
    """An arbitrator of the bundled pair, drawn at random, that says it was reinforced."""
    path = tmp_path_factory.mktemp("arbitrator") / "a.safetensors"
    return drawn_arbitrator(path, pocket, stage="rl", group=12, prompts=16)


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
