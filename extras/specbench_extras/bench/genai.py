"""OpenVINO GenAI's own pipelines, vanilla and speculative, on models exported here; float32 throughout.

`make bench-peers` installs GenAI. Only the bench uses it.
"""

import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from specbench.base.console import progress
from specbench.base.environment import cache_folder
from specbench.config import UserError
from specbench.engine.models.pair import Pair
from specbench_extras.bench.engines import NEW_TOKENS, Generate

NEEDED = ("openvino", "openvino_genai", "openvino_tokenizers")
VERSION = 2  # of the exported files
CACHE_GB = 1


def engines(pair: Pair, gamma: int) -> dict[str, Generate]:
    """Greedy generation by method. Raises UserError if GenAI is not installed or cannot run the pair."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise UserError(f"{missing[0]} is not installed; make bench-peers does that")
    if pair.device.type != "cpu" or pair.models["target"].dtype != torch.float32:
        raise UserError("GenAI is compared on a CPU in float32 only")
    import openvino_genai as genai

    try:
        with progress("GenAI", 4) as advance:
            folders = {role: str(exported(pair, role, advance)) for role in ("target", "draft")}
            settings = {
                "INFERENCE_PRECISION_HINT": "f32",
                "KV_CACHE_PRECISION": "f32",
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "scheduler_config": _scheduler(genai),
            }
            paged = settings | {"ATTENTION_BACKEND": "PA"}  # the one that works with the export's mask
            vanilla = genai.LLMPipeline(folders["target"], "CPU", **paged)
            advance(1)
            draft = genai.draft_model(folders["draft"], "CPU", **settings)
            speculative = genai.LLMPipeline(folders["target"], "CPU", draft_model=draft, **paged)
            advance(1)
    except Exception as error:  # another project's code fails in its own ways; the bench continues without it
        raise UserError(f"GenAI cannot run this pair: {' '.join(str(error).split())[:200]}") from None
    return {"vanilla": _generate(vanilla, pair, None), "sps": _generate(speculative, pair, gamma)}


def _scheduler(genai: Any) -> Any:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.enable_prefix_caching = False  # here, texts repeat for every engine
    return scheduler


def _generate(pipeline: Any, pair: Pair, gamma: int | None) -> Generate:
    import openvino as ov
    import openvino_genai as genai

    config = genai.GenerationConfig()
    config.max_new_tokens = NEW_TOKENS
    config.do_sample = False
    config.apply_chat_template = False
    config.stop_token_ids = set(pair.eos_ids)
    if gamma is not None:
        config.num_assistant_tokens = gamma
        config.assistant_confidence_threshold = 0.0

    def generate(prompt: list[int]) -> list[int]:
        ids = ov.Tensor(np.array([prompt], np.int64))
        inputs = genai.TokenizedInputs(ids, ov.Tensor(np.ones((1, len(prompt)), np.int64)))
        return list(pipeline.generate(inputs, config).tokens[0])

    return generate


def exported(pair: Pair, role: str, advance: Callable[[int], None]) -> Path:
    """The folder of a model in GenAI's format, exported once for its weights and the versions of packages."""
    import openvino as ov
    import transformers

    facts = pair.describe()[role]
    versions = "-".join((str(VERSION), ov.__version__.split("-")[0], torch.__version__, transformers.__version__))
    folder = cache_folder() / "genai" / f"{facts['weights_hash']}-{versions}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            write(pair, role, made)
            made.rename(folder)  # whole or not at all
        finally:
            shutil.rmtree(made, ignore_errors=True)
    advance(1)
    return folder


def write(pair: Pair, role: str, folder: Path) -> None:
    """Write a model, its tokenizer and settings to `folder`, in the layout that GenAI's pipelines read."""
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer

    model = pair.models[role]
    exported = convert(model)
    exported.set_rt_info("f32", ["runtime_options", "KV_CACHE_PRECISION"])
    ov.save_model(exported, folder / "openvino_model.xml", compress_to_fp16=False)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    pair.tokenizer.save_pretrained(folder)
    tokenizers = convert_tokenizer(pair.tokenizer, with_detokenizer=True)
    for name, made in zip(("tokenizer", "detokenizer"), tokenizers, strict=True):
        ov.save_model(made, folder / f"openvino_{name}.xml")


def convert(model: PreTrainedModel) -> Any:
    """Our OpenVINO runtime's export, with just the inputs and outputs that GenAI expects of a language model."""
    from openvino import opset13 as op

    from specbench_extras.openvino.export import traced

    made = traced(model)
    batch = op.gather(op.shape_of(made.input("input_ids")), op.constant(0), op.constant(0))
    every = op.range(op.constant(0), batch, op.constant(1), output_type="i64")
    rows = made.input("rows").get_node()
    for reader in rows.output(0).get_target_inputs():
        reader.replace_source_output(every.output(0))
    made.remove_parameter(rows)
    logits, *states = made.get_results()
    for state in states:
        made.remove_result(state)
    logits.output(0).get_tensor().set_names({"logits"})
    made.validate_nodes_and_infer_types()
    return made
