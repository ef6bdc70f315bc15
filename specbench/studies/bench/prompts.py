"""Prompts that come with the package."""

import json

from specbench.config import SUITES
from specbench.tasks.pocket.corpus import prompt_and_completion

FAMILIES = ("gsm8k", "math500", "humaneval", "cnndm")


def bundled_prompts(family: str, count: int) -> list[str]:
    """The first prompts of a bundled task, without shots; needs no lm-eval."""
    lines = (SUITES / "tasks" / "pocket" / f"{family}_test.jsonl").read_text().splitlines()[:count]
    return [prompt_and_completion(family, json.loads(line))[0] for line in lines]
