"""Pairs of random weights in the shapes of real models: SYNTHETIC, good for what an engine costs and nothing else."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase

from specbench.bench.engines import CONTEXT
from specbench.config import UserError
from specbench.console import progress
from specbench.models import Pair

POSITIONS = 1024  # of every shape: room for the texts here; what a cache made for 128 K takes says nothing of an engine
SLACK = 1.1  # of the weights: caches, logits and what lies between
# Of the weights, that a runtime makes beside the models on a CPU: the exported and the compiled ones; two layouts.
COPIES = {"openvino": 2, "static": 2}


def _llama(**sizes: Any) -> dict[str, Any]:
    return {"max_position_embeddings": POSITIONS, "pad_token_id": None, "eos_token_id": None, "bos_token_id": 0} | sizes


TINY = _llama(
    vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, head_dim=16
)
LLAMA_160M = _llama(
    vocab_size=32000, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
)
LLAMA_1B = _llama(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    tie_word_embeddings=True,
)
LLAMA_8B = _llama(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
)
SHAPES = {  # draft and target
    "tiny": (TINY | {"num_hidden_layers": 1}, TINY),
    "160m-1b": (LLAMA_160M, LLAMA_1B),
    "1b-8b": (LLAMA_1B, LLAMA_8B),
}


def make(shape: str, device: torch.device, dtype: torch.dtype) -> Pair:
    """The pair of a shape, made where it shall be in the type that it shall have. UserError if the memory is short."""
    if shape not in SHAPES:
        raise UserError(f"--shapes {shape}: there is no such shape; choose {', '.join(SHAPES)}")
    draft, target = (LlamaConfig(**config) for config in SHAPES[shape])
    need_memory(shape, SLACK * weights(shape) * dtype.itemsize, device)
    models: dict[str, PreTrainedModel] = {}
    logging.getLogger("transformers").setLevel(logging.ERROR)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), progress("random weights", 2) as advance:
        torch.manual_seed(0)  # transformers draws weights from the global generator, which is put back behind this
        for role, config in (("target", target), ("draft", draft)):
            with torch.device(device):
                models[role] = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
            advance(1)
    # Nothing here makes text of ids, so there is no tokenizer: only what says that no token ends a text.
    tokenizer = cast(PreTrainedTokenizerBase, SimpleNamespace(eos_token_id=None, pad_token_id=None))
    return Pair(f"synthetic {shape}", models, tokenizer)


def prompts(pair: Pair, count: int) -> list[list[int]]:
    """Random ids, CONTEXT of them in each."""
    rng = torch.Generator().manual_seed(0)
    return torch.randint(1, pair.vocabulary, (count, CONTEXT), generator=rng).tolist()


def weights(shape: str) -> int:
    """Parameters of both models together; nothing is allocated to count them."""
    with torch.device("meta"):
        return sum(AutoModelForCausalLM.from_config(LlamaConfig(**one)).num_parameters() for one in SHAPES[shape])


def need_memory(what: str, needed: float, device: torch.device) -> None:
    """Raise UserError unless so many bytes are free."""
    free = free_memory(device)
    if needed > free:
        raise UserError(
            f"--shapes {what} needs about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on {device}; choose "
            "a smaller shape or a narrower --dtype, or free some memory"
        )


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had there."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def placed(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """Where and in which type a shape is made: by default on a GPU in bfloat16, else on the CPU in float32."""
    if device == "spread":
        raise UserError("--shapes are made on one device; use --device auto, cpu, cuda or cuda:N")
    try:
        usual = "cuda" if torch.cuda.is_available() else "cpu"
        where = torch.empty(0, device=usual if device == "auto" else device).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {device}: {str(error).splitlines()[0]}; use auto, cpu, cuda or cuda:N") from None
    own = torch.bfloat16 if where.type == "cuda" else torch.float32
    kind = own if dtype == "auto" else getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise UserError(f"--dtype {dtype}: no such type; use auto, float32, bfloat16, float16 or float64")
    return where, kind


def too_large(shape: str, pair: Pair, asked: list[str]) -> dict[str, str]:
    """Of the runtimes asked for (none: all) those for whose copies of the weights there is no room, and how much is.

    Raises UserError for one that was asked for.
    """
    found: dict[str, str] = {}
    if pair.device.type != "cpu":  # where the runtimes that copy do not run at all
        return found
    size = sum(one.numel() * one.element_size() for model in pair.models.values() for one in model.parameters())
    for name in asked or COPIES:
        try:
            need_memory(f"{shape} on {name}", COPIES.get(name, 0) * size, pair.device)
        except UserError as error:
            if asked:
                raise
            found[name] = str(error)
    return found
