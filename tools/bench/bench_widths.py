"""What a forward of the `static` runtime takes by its width, and at how many gigabytes a second it reads weights.

    python tools/bench/bench_widths.py FOLDER_OR_MODEL bfloat16 2

The fifth percentile of turns after 300 tokens; the arguments are a model of transformers, its type, and threads.
"""

import sys
from time import perf_counter

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from specbench.engine.models import cost
from specbench.engine.runtimes.static import STATIC

CONTEXT, WIDTHS, SECONDS = 300, (1, 2, 3, 4, 5, 8, 16), 12


def main(name: str = "suites/pairs/weights/target", dtype: str = "float32", threads: str = "1") -> int:
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype)).eval().requires_grad_(False)
    runner = STATIC.runner(model)
    ids = torch.randint(0, 400, (CONTEXT + max(WIDTHS),), generator=torch.Generator().manual_seed(0))
    runner.forward(ids[:CONTEXT], 1, (), None, None)
    seconds: dict[int, list[float]] = {width: [] for width in WIDTHS}
    end = perf_counter() + SECONDS
    while perf_counter() < end:
        for width in WIDTHS:
            runner.truncate(CONTEXT)
            began = perf_counter()
            runner.forward(ids[CONTEXT : CONTEXT + width], 0, (), None, None)
            seconds[width].append(perf_counter() - began)
    low = {width: float(np.quantile(times, 0.05)) for width, times in seconds.items()}
    read = cost.facts(model)["weight_bytes"] / low[1] / 1e9
    times = " / ".join(f"{1000 * low[width]:.2f}" for width in WIDTHS)
    print(f"{dtype}, {threads} threads, {len(seconds[1])} turns, widths {WIDTHS}: ms {times}; {read:.1f} GB/s at one")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
