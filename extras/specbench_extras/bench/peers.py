"""Other projects' engines, on the same models, prompts, length, end tokens and draft length; ids in, ids out."""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from specbench.config import UserError
from specbench.engine.models.folders import model_folder
from specbench.engine.models.pair import Pair
from specbench_extras.bench import genai as openvino_genai
from specbench_extras.bench.engines import NEW_TOKENS, Engine, Generate

TRANSFORMERS, GENAI, VLLM = "transformers", "genai", "vllm"
MEMORY = 0.3  # of the GPU, for each of vLLM's two engines; our pair stays in memory too


def peers(pair: Pair, gamma: int) -> tuple[list[Engine], dict[str, str]]:
    """The peers that are installed and can run the pair here; and by name, why others are missing."""
    engines = [
        Engine("vanilla", TRANSFORMERS, _transformers(pair, None, gamma)),
        Engine("sps", TRANSFORMERS, _transformers(pair, pair.models["draft"], gamma)),
    ]
    missing = {}
    others: dict[str, Callable[[Pair, int], dict[str, Generate]]] = {GENAI: openvino_genai.engines, VLLM: _vllm}
    for name, make in others.items():
        try:
            engines += [Engine(method, name, generate) for method, generate in make(pair, gamma).items()]
        except UserError as error:
            missing[name] = str(error)
    return engines, missing


def _transformers(pair: Pair, assistant: PreTrainedModel | None, gamma: int) -> Generate:
    """transformers' `generate`, assisted if there is an assistant, with greedy decoding and a constant draft length."""
    if assistant is not None:
        assistant.generation_config.num_assistant_tokens = gamma
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0

    def generate(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt], device=pair.device)
        output = pair.models["target"].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=assistant,
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=sorted(pair.eos_ids),
            pad_token_id=pair.tokenizer.pad_token_id or 0,
        )
        return output[0, len(prompt) :].tolist()

    return generate


def _vllm(pair: Pair, gamma: int) -> dict[str, Generate]:
    """vLLM's offline engine, without its prefix cache. Written from its documentation (0.25), and not yet tested.

    Raises UserError if it is not installed, or fails to start.
    """
    if pair.device.type != "cuda":
        raise UserError("vLLM is compared on CUDA only")
    if importlib.util.find_spec("vllm") is None:
        raise UserError("vllm is not installed")
    if set(pair.specs) < {"target", "draft"}:
        raise UserError("vLLM reads models from folders, and this pair has none")
    folders = {role: str(model_folder(pair.specs[role])) for role in ("target", "draft")}
    drafting = {"method": "draft_model", "model": folders["draft"], "num_speculative_tokens": gamma}
    try:
        from vllm import LLM, SamplingParams

        settings = SamplingParams(
            temperature=0.0, max_tokens=NEW_TOKENS, stop_token_ids=sorted(pair.eos_ids), detokenize=False
        )

        def start(**more: Any) -> Generate:
            engine = LLM(
                model=folders["target"],
                dtype=str(pair.models["target"].dtype).removeprefix("torch."),
                max_model_len=min(pair.context, 4096),
                max_num_seqs=1,
                gpu_memory_utilization=MEMORY,
                enable_prefix_caching=False,
                **more,
            )

            def generate(prompt: list[int]) -> list[int]:
                (output,) = engine.generate([{"prompt_token_ids": prompt}], settings, use_tqdm=False)
                return list(output.outputs[0].token_ids)

            return generate

        return {"vanilla": start(), "sps": start(speculative_config=drafting)}
    except Exception as error:  # another project's code fails in its own ways; the bench continues without it
        raise UserError(f"vLLM does not start: {' '.join(str(error).split())[:200]}") from None
