"""Prompts that come with the package."""

import json

from jinja2 import Template

from specbench.base.untrusted import read_mapping
from specbench.config import SUITES

FAMILIES = ("gsm8k", "math500", "humaneval", "cnndm")
FOLDER = SUITES / "tasks" / "pocket"


def bundled_prompts(family: str, count: int) -> list[str]:
    """The first prompts of a bundled task, without shots; needs no lm-eval."""
    form = Template(
        read_mapping(FOLDER / f"pocket_{family}.yaml", tags=True)["doc_to_text"], keep_trailing_newline=True
    )
    lines = (FOLDER / f"{family}_test.jsonl").read_text().splitlines()[:count]
    return [form.render(json.loads(line)) for line in lines]
