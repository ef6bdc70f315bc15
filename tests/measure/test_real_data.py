"""The real benchmark documents through the bundled pair: scores near zero, but every count and identity must hold."""

import json

import pytest
from typer.testing import CliRunner

from specbench.analysis import metrics
from specbench.cli import app
from specbench.results import records

pytestmark = pytest.mark.long

TASKS = {"gsm8k", "minerva_math500", "humaneval", "cnn_dailymail_abisee", "mmlu"}


@pytest.fixture(scope="module")
def run(real_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("real") / "run"
    suite = tmp_path_factory.mktemp("suite") / "short.yaml"
    # The suite `csd` and mmlu with shorter answers, so that the test stays quick.
    lines = [
        {"task": "gsm8k", "fewshot": 8, "max_new_tokens": 24},
        {"task": "minerva_math500", "fewshot": 4, "max_new_tokens": 24},
        {"task": "humaneval", "fewshot": 0, "max_new_tokens": 24},
        {"task": "cnn_dailymail_abisee", "fewshot": 0, "max_new_tokens": 24},
        {"task": "mmlu", "fewshot": 0, "max_new_tokens": 24},
    ]
    suite.write_text(json.dumps({"description": "short", "tasks": lines}))
    arguments = ["run", "--method", "csd", "--method", "sps", "--suite", str(suite), "--limit", "2"]
    result = CliRunner().invoke(
        app, [*arguments, "--data-dir", str(real_data), "--allow-code-execution", "--out", str(folder)]
    )
    assert result.exit_code == 0, result.output
    return folder


def test_every_task_has_figures(run):
    summary = records.read_frame(run / "summary.parquet")
    assert set(summary.task) == {*TASKS, "average"}
    assert (summary[summary.task != "average"].documents == 2).all()
    assert summary.accuracy.notna().all()
    assert not summary.errors.any()


def test_counts_and_identities(run):
    rounds = records.read_rows(run, "rounds").to_pandas()
    samples = records.read_rows(run, "samples").to_pandas()
    decoding = rounds[(rounds["round"] > 0) & (rounds.truncated == 0) & (rounds.method != "vanilla")]
    expected = decoding.drafted - (decoding.drafted - decoding.accepted) + decoding.target_forwards
    assert (decoding.committed == expected).all()
    tokens = samples.set_index([*metrics.SAMPLE, "warmup"]).tokens.map(len)
    counted = rounds.groupby([*metrics.SAMPLE, "warmup"]).committed.sum()
    assert (tokens == counted.reindex(tokens.index)).all()
    lossless = samples[~samples.warmup & samples.method.isin(["vanilla", "sps"])]
    assert (lossless.groupby(["task", "doc_id"]).text.nunique() == 1).all()
