"""What forked commands find imported, so that only what is theirs takes time."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import lm_eval.tasks.minerva_math.utils  # (what the bundled tasks score with)
import torch
import transformers.models.llama.modeling_llama

import specbench.measure.command
import specbench.measure.loop
import specbench.report.page
import specbench_extras.bench.main

torch.set_num_threads(1)
__all__ = ["lm_eval", "specbench", "specbench_extras", "torch", "transformers"]
