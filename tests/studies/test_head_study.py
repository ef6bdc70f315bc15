"""Many heads on one run's drafts: the states read again are those of decoding, and Table 3's cells come of them."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from specbench.analysis.drafts import recorded_rounds
from specbench.analysis.simulate import simulate
from specbench.config import SUITES, UserError
from specbench.measure import loop, prepare
from specbench.plan import resolve_plan
from specbench.results.stored import StoredRun
from specbench.studies import heads as head_study

SHIPPED = SUITES / "trained" / "heads" / "specdecpp-pocket.safetensors"


def decoded(folder: Path, temperature: float, *settings: str) -> StoredRun:
    given = [f"specdecpp.{setting}" for setting in settings]
    plan = resolve_plan(["specdecpp"], "smoke", "pocket", given, "vanilla", 3, temperature=temperature)
    loop.execute(plan, folder, lambda _: True)
    return StoredRun(folder)


@pytest.fixture(scope="module", params=(pytest.param(0.0, marks=pytest.mark.long), 1.0), ids=("greedy", "sampled"))
def run(request, tmp_path_factory) -> StoredRun:
    return decoded(tmp_path_factory.mktemp("study") / "run", request.param, "shortest=12", "longest=12")


@pytest.fixture(scope="module")
def heads(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    shutil.copy(SHIPPED, folder)
    return folder


def test_a_head_says_again_what_it_said_while_decoding(run, heads):
    pair = prepare.load_models(run.plan)
    samples = run.samples()
    samples = samples[~samples.warmup & (samples.method == "specdecpp")]
    drafts = head_study.read_again(run, "specdecpp", samples, pair)
    head = head_study.read_head(SHIPPED, "specdecpp", pair, head_study.SHAPES, "draft")
    compared = 0
    for again, row in zip(
        head_study.with_predictions(drafts, head, pair), recorded_rounds(run, "specdecpp"), strict=True
    ):
        assert (again["doc_id"], again["round"]) == (row["doc_id"], row["round"])
        for result, said in zip(again["predictions"], row["predictions"] or [], strict=True):
            if not np.isnan(said):
                assert result == pytest.approx(said, abs=2e-3)
                compared += 1
    assert compared > 40


def test_the_recorded_head_is_replayed_as_simulate_does_it(run, heads):
    analysis = head_study.study(run, heads, thresholds=[0.3, 0.7])
    plain = simulate(run, "specdecpp", thresholds=[0.3, 0.7]).table
    for row in analysis.to_dict("records"):
        same = plain[
            (plain.setting == f"threshold={row['threshold']:g}") & (plain.task.isin([row["task"], "all tasks"]))
        ]
        assert row["tokens_per_s"] == pytest.approx(same.tokens_per_s.iloc[-1], rel=0.02)
    assert set(analysis.threshold) == {0.3, 0.7} and analysis.weight.eq(1).all()


def test_the_confidence_of_greedy_drafts_is_their_plain_probability():
    """Logits ln 3 and 0: 3/4 and 1/4. What was recorded comes first."""
    logits, row = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log(), {"draft_tokens": [0, 1], "confidences": None}
    assert head_study._confidence(row, logits).tolist() == pytest.approx([0.75, 0.25])
    assert head_study._confidence({**row, "confidences": [0.5, 0.5]}, logits).tolist() == [0.5, 0.5]


def test_cells_of_table_3(run, tmp_path):
    keys = {"head": "h", "depth": 2, "weight": 6.0, "train_kl": 0.12345, "eval_kl": 0.2}
    tasks = ["pocket_gsm8k", "pocket_math500", "pocket_humaneval", "pocket_cnndm", "pocket_ifeval", "pocket_ruler"]
    rows = [
        {**keys, "threshold": threshold, "task": task, "tokens_per_s": speed + 10 * i * (threshold == 0.3)}
        for threshold, speed in ((0.3, 100.0), (0.7, 120.0))
        for i, task in enumerate(tasks)
    ]
    # At 0.3: 100, 110, …, 150, mean 125; at 0.7: 120 everywhere.
    best = head_study.best(pd.DataFrame(rows)).set_index("task")
    assert best.threshold.to_dict() == dict(zip(tasks, (0.7, 0.7, 0.3, 0.3, 0.3, 0.3), strict=True)) | {"alpaca": 0.3}
    assert best.tokens_per_s["alpaca"] == 125 and best.tokens_per_s["pocket_math500"] == 120
    head_study.write(pd.DataFrame(rows), run, tmp_path / "t.csv")
    with open(tmp_path / "t.csv") as file:
        written = list(csv.DictReader(file))
    cells = {(row["task"], row["metric"]): row["value"] for row in written}
    assert cells["alpaca", "throughput"] == "125" and cells["alpaca", "train/KL"] == "0.1235"
    assert {row["setting"] for row in written} == {"weight=6;depth=2"} and len(written) == 9


def test_bad_input_is_one_clear_line(run, heads, tmp_path):
    short = decoded(tmp_path / "short", 0.0)
    with pytest.raises(UserError, match="did not draft a fixed length under a head; a run that did: specbench run"):
        head_study.study(short, heads)
    with pytest.raises(UserError, match="has no heads; `specbench train"):
        head_study.study(run, tmp_path)
