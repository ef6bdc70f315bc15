"""What caches and attention in bfloat16 save on a CPU, next to float32's, and how far each is from float32.

    python tools/bench/bench_attention.py qwen2.5-coder 2

The target of a pair and threads. For each length of context: a prompt's last tokens, one token and a few, by both forms
of one model in turn, and the logits' distance from those of the same weights in float32. The text is the project's
pages.
"""

import copy
import sys
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench import config
from specbench.config import UserError
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes.blocks import multiplies
from specbench.engine.runtimes.lean import Lean
from specbench.engine.runtimes.static import CHUNK, StaticRunner

CONTEXTS, WIDTHS, SECONDS = (256, 1024, 4096), (1, 8, CHUNK), 20
PAGES = Path(__file__).parents[2] / "docs" / "pages"


class Form(NamedTuple):
    name: str
    runner: StaticRunner

    def take(self, ids: Tensor) -> tuple[float, Tensor]:
        """Seconds of a forward after what is cached, which stays as it is; and the logits [n, V]."""
        cached = self.runner.length
        began = perf_counter()
        logits, _ = self.runner.forward(ids, 0, (), None, None)
        seconds = perf_counter() - began
        self.runner.truncate(cached)
        return seconds, logits.float()


def main(name: str = "qwen2.5-coder", threads: str = "2") -> int:
    torch.set_num_threads(int(threads))
    if not multiplies("cpu", torch.bfloat16):
        print("this processor has no products in bfloat16")
        return 0
    try:
        pair = load_pair(config.load_pair(name), "cpu", "bfloat16")
    except UserError as error:
        print(error)
        return 0
    model = pair.models["target"]
    forms = [Form("bfloat16", StaticRunner(Lean(model))), Form("float32", StaticRunner(Lean(model, half=False)))]
    text = "\n\n".join(page.read_text() for page in sorted(PAGES.glob("*.md")))
    ids = torch.tensor(pair.tokenizer(text)["input_ids"][: max(CONTEXTS) + CHUNK])
    print("context  tokens  bfloat16 ms  float32 ms  ratio")
    for context in CONTEXTS:
        for form in forms:
            form.runner.truncate(0)
            form.runner.forward(ids[:context], 1, (), None, None)
        for width in WIDTHS:
            low = [1000 * float(np.quantile(times, 0.1)) for times in _by_form(forms, ids[context : context + width])]
            print(f"{context:7}  {width:6}  {low[0]:11.2f}  {low[1]:10.2f}  {low[0] / low[1]:5.3f}", flush=True)
    return _distances(model, forms, ids)


def _by_form(forms: list[Form], block: Tensor) -> list[list[float]]:
    """Seconds of each form, which take turns."""
    seconds: list[list[float]] = [[] for _ in forms]
    end = perf_counter() + SECONDS
    while perf_counter() < end:
        for form, times in zip(forms, seconds, strict=True):
            times.append(form.take(block)[0])
    return seconds


def _distances(model: PreTrainedModel, forms: list[Form], ids: Tensor) -> int:
    """How far the logits of the last context's next tokens are from the same weights in float32, of their spread."""
    context = forms[0].runner.length
    wide = StaticRunner(Lean(copy.deepcopy(model).float()))
    wide.forward(ids[:context], 1, (), None, None)
    block = ids[context : context + CHUNK]
    exact = Form("exact", wide).take(block)[1]
    for form in forms:
        difference = (form.take(block)[1] - exact).square().mean().sqrt() / exact.std()
        print(f"{form.name}: {float(difference):.4f} of the spread from float32 after {context} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
