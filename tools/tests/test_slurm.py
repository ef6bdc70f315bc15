"""The recipe for Slurm on submitit's local executor: a job that is preempted by a real signal continues its shard."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_runs import SAME, TASKS, always, plan_of, samples_of, save_pair, write_suite

from specbench.measure import loop
from specbench.measure.join import join

RECIPE = Path(__file__).parents[2] / "tools" / "recipes" / "slurm.py"


def children(pid):
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def job_of(pid):
    """The process of the job under a recipe: its controller's child."""
    for controller in children(pid):
        for job in children(controller):
            return job
    return None


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_preempted_job_goes_on_with_its_shard(tmp_path):
    pytest.importorskip("submitit")
    save_pair(tmp_path, 8)
    suite = write_suite(tmp_path, TASKS, 3)
    words = ["--pair", f"target={tmp_path / 'target'},draft={tmp_path / 'draft'}", "--suite", suite]
    words += ["--method", "sps", "--repeats", "4", "--device", "cpu"]
    run = tmp_path / "run"
    command = [sys.executable, RECIPE, "--local", "--shards", "1", "--out", run, "--", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as recipe:
        while not list(run.glob("shards/1/parts/*.samples.parquet")) and recipe.poll() is None:
            time.sleep(0.02)
        if job := job_of(recipe.pid):
            os.kill(job, signal.SIGUSR2)
        said = recipe.communicate()[0]
    assert recipe.returncode == 0, said
    logs = "".join(path.read_text() for end in ("out", "err") for path in (run / "jobs").glob(f"*.{end}"))
    assert "this job is preempted" in logs and "Requeued job" in logs
    attempts = samples_of(run / "shards" / "1").attempt.tolist()
    assert set(attempts) == {1, 2} and attempts == sorted(attempts)
    join(run)
    plan = plan_of(tmp_path, ["sps"], suite=suite, repeats=4)
    assert loop.execute(plan, tmp_path / "whole", always)
    assert samples_of(tmp_path / "whole")[SAME].astype(str).equals(samples_of(run)[SAME].astype(str))
