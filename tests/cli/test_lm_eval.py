"""specbench next to lm-eval's own `hf` model: the same texts and the same scores, document by document."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.config import SUITES, task_info
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.models.folders import BUNDLED
from specbench.engine.types import Sampling
from specbench.measure.prompts import encode
from specbench.methods.chains.vanilla import Vanilla
from specbench.permissions import permitted
from specbench.tasks.harness import TaskChoice, Tasks

LIMIT = 6


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "fewshot"),
    [("pocket_gsm8k", 0), ("pocket_gsm8k", 3), ("pocket_math500", 0), ("pocket_humaneval", 0), ("pocket_cnndm", 0)],
)
def test_vanilla_equals_the_hf_model(pocket, task, fewshot):
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    theirs = simple_evaluate(
        model=HFLM(pretrained=str(BUNDLED / "target"), device="cpu", dtype="float32", batch_size=1),
        tasks=[task],
        num_fewshot=fewshot,
        limit=LIMIT,
        task_manager=TaskManager(include_path=str(SUITES / "tasks"), include_defaults=False),
        confirm_run_unsafe_code=True,
        random_seed=0,
        fewshot_random_seed=0,
        log_samples=True,
    )
    info = task_info(task)
    choice = TaskChoice(task, fewshot, info.max_new_tokens, None, "", None)
    tasks = Tasks([choice], task_folder=SUITES / "tasks", data_dir=None, limit=LIMIT, seed=0, chat=None, run_code=True)
    vanilla, texts = Vanilla(pocket.session("target")), {}
    for request in tasks.requests():
        ending = Ending(Limits(request.max_new_tokens, pocket.eos_ids, request.until), pocket.detokenizer)
        for _ in until_end(vanilla.rounds(encode(pocket, request.prompt), Sampling(), None), ending):
            pass
        texts[task, request.doc_id] = ending.text()
    samples = theirs["samples"][task]
    prompts = {request.doc_id: request.prompt for request in tasks.requests()}
    assert {s["doc_id"]: s["arguments"][0][0] for s in samples} == prompts
    assert {(task, s["doc_id"]): s["resps"][0][0] for s in samples} == texts
    assert len(set(texts.values())) > LIMIT // 2
    metric, _, label = info.metric.partition(",")
    with permitted(allow_code_execution=True):
        scores = tasks.score(texts)
    mine = {(s.doc_id, s.filter): s.value for s in scores if s.metric == metric and s.doc_id is not None}
    assert mine == {(s["doc_id"], s["filter"]): s[metric] for s in samples}
    (total,) = (s for s in scores if s.doc_id is None and (s.metric, s.filter) == (metric, label))
    assert total.value == pytest.approx(theirs["results"][task][info.metric])
    assert total.stderr == pytest.approx(theirs["results"][task][f"{metric}_stderr,{label}"])


@pytest.mark.long
def test_registered_with_lm_eval(tmp_path):
    """The lm_eval command line with `--model specbench`, in any folder: it knows the bundled tasks."""
    command = [
        *(str(Path(sys.executable).with_name("specbench-lm-eval")), "--model", "specbench"),
        *("--model_args", "pair=pocket,method=sps", "--tasks", "pocket_gsm8k", "--limit", "2"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "pocket_gsm8k" in done.stdout and "strict-match" in done.stdout
