"""Pairs of random weights in the shapes of real models. SYNTHETIC: they only serve to time engines."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase

from specbench.base.console import progress
from specbench.config import UserError
from specbench.engine.clock import free_memory
from specbench.engine.models.pair import Pair
from specbench_extras.bench.engines import CONTEXT

POSITIONS = 1024  # of every shape: enough for the texts here, so that caches stay small
SLACK = 1.1  # memory as a multiple of the weights: caches, logits and activations
# Copies of the weights that a runtime makes on a CPU, besides the models: exported and compiled ones; two layouts.
COPIES = {"openvino": 2, "static": 2}


def _llama(vocabulary: int, hidden: int, intermediate: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": intermediate}
    sizes |= {"num_hidden_layers": layers, "num_attention_heads": heads, "max_position_embeddings": POSITIONS}
    return {"pad_token_id": None, "eos_token_id": None, "bos_token_id": 0, **sizes, **more}


TINY = _llama(512, 64, 128, 2, 4, head_dim=16)
LLAMA_160M = _llama(32000, 768, 3072, 12, 12)
LLAMA_1B = _llama(128256, 2048, 8192, 16, 32, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True)
QWEN_05B = _llama(151936, 896, 4864, 24, 14, num_key_value_heads=2, head_dim=64, tie_word_embeddings=True)
LLAMA_8B = _llama(128256, 4096, 14336, 32, 32, num_key_value_heads=8, head_dim=128)
SHAPES = {  # draft and target
    "tiny": (TINY | {"num_hidden_layers": 1}, TINY),
    "160m-1b": (LLAMA_160M, LLAMA_1B),
    "1b-8b": (LLAMA_1B, LLAMA_8B),
    "0.5b-8b": (QWEN_05B, LLAMA_8B),
}


def make(shape: str, device: torch.device, dtype: torch.dtype) -> Pair:
    """A pair of this shape, made directly on the device and in the type. Raises UserError if memory is short."""
    if shape not in SHAPES:
        raise UserError(f"--shapes {shape}: there is no such shape; choose {', '.join(SHAPES)}")
    draft, target = (LlamaConfig(**config) for config in SHAPES[shape])
    need_memory(shape, SLACK * weights(shape) * dtype.itemsize, device)
    models: dict[str, PreTrainedModel] = {}
    logging.getLogger("transformers").setLevel(logging.ERROR)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), progress("random weights", 2) as advance:
        torch.manual_seed(0)  # transformers draws weights from the global generator, which is restored afterwards
        for role, config in (("target", target), ("draft", draft)):
            with torch.device(device):
                models[role] = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
            advance(1)
    # The texts mean nothing, so the tokenizer only has to say that no token ends a text.
    unread = SimpleNamespace(eos_token_id=None, pad_token_id=None, decode=lambda ids, **options: "")
    tokenizer = cast(PreTrainedTokenizerBase, unread)
    return Pair(f"synthetic {shape}", models, tokenizer)


def prompts(pair: Pair, count: int) -> list[list[int]]:
    """Prompts of CONTEXT random ids each."""
    rng = torch.Generator().manual_seed(0)
    return torch.randint(1, pair.vocabulary, (count, CONTEXT), generator=rng).tolist()


def weights(shape: str) -> int:
    """The number of parameters of both models; counting allocates nothing."""
    with torch.device("meta"):
        return sum(AutoModelForCausalLM.from_config(LlamaConfig(**config)).num_parameters() for config in SHAPES[shape])


def need_memory(what: str, needed: float, device: torch.device) -> None:
    """Raise UserError unless `needed` bytes are free."""
    free = free_memory(device)
    if needed > free:
        raise UserError(
            f"--shapes {what} needs about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on {device}; choose "
            "a smaller shape or a narrower --dtype, or free some memory"
        )


def device_and_dtype(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """The device and type of a shape: by default a GPU and bfloat16, else the CPU and float32."""
    if device == "spread":
        raise UserError("--shapes are made on one device; use --device auto, cpu, cuda or cuda:N")
    try:
        usual = "cuda" if torch.cuda.is_available() else "cpu"
        where = torch.empty(0, device=usual if device == "auto" else device).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {device}: {str(error).splitlines()[0]}; use auto, cpu, cuda or cuda:N") from None
    usual_dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    chosen = usual_dtype if dtype == "auto" else getattr(torch, dtype, None)
    if not isinstance(chosen, torch.dtype) or not chosen.is_floating_point:
        raise UserError(f"--dtype {dtype}: no such type; use auto, float32, bfloat16, float16 or float64")
    return where, chosen


def too_large(shape: str, pair: Pair, requested: list[str]) -> dict[str, str]:
    """The runtimes whose copies of the weights do not fit into memory, with the reason.

    Checks the `requested` runtimes, by default all. Raises UserError if a requested one does not fit.
    """
    reasons: dict[str, str] = {}
    if pair.device.type != "cpu":  # the runtimes that copy weights run on CPUs only
        return reasons
    size = sum(
        weight.numel() * weight.element_size() for model in pair.models.values() for weight in model.parameters()
    )
    for name in requested or COPIES:
        try:
            need_memory(f"{shape} on {name}", COPIES.get(name, 0) * size, pair.device)
        except UserError as error:
            if requested:
                raise
            reasons[name] = str(error)
    return reasons
