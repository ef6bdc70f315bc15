"""The limits of new tokens of real tasks are not below lm-eval's own: a lower one cuts long answers."""

from pathlib import Path

import lm_eval
import pytest
import yaml

from specbench.config import SUITES, task_info

TASKS = Path(lm_eval.__file__).parent / "tasks"


class Loader(yaml.SafeLoader):
    """Reads lm-eval's `!function` tags as text."""


Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))


@pytest.mark.parametrize(
    ("task", "file"),
    [
        ("ifeval", "ifeval/ifeval.yaml"),
        ("humaneval", "humaneval/humaneval.yaml"),
        ("cnn_dailymail_abisee", "cnn_dailymail/cnn_dailymail.yaml"),
        ("niah_single_1", "ruler/niah_single_1.yaml"),
    ],
)
def test_no_limit_is_below_the_tasks_own(task, file):
    own = yaml.load((TASKS / file).read_text(), Loader)["generation_kwargs"]["max_gen_toks"]
    assert task_info(task).max_new_tokens >= own > 100
    bundled = SUITES / "tasks" / task / f"{task}.yaml"
    if bundled.exists():
        text = yaml.load(bundled.read_text(), Loader)
        assert text["generation_kwargs"]["max_gen_toks"] >= own
