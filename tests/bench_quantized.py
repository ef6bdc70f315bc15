"""What weights in fewer bits cost on a CPU: CPU seconds of a linear layer over those in float32, by turns.

Run by `make bench`; says so where torchao is not installed (`make bench-peers` installs it). One thread.
"""

import copy
import importlib.util
import sys
from importlib import metadata
from time import process_time

import numpy as np
import torch
from benches import by_turns
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.base.stats import Paired, speedup
from specbench.config import ModelSpec
from specbench.engine.models.quantize import quantized

SCHEMES = ("int8", "int4")
SIZES, TOKENS, TURNS = (512, 2048), (1, 6), 60


def main() -> int:
    if importlib.util.find_spec("torchao") is None:
        print("torchao is not installed: make bench-peers")
        return 0
    torch.set_num_threads(1)
    print(
        f"CPU seconds of a square layer over float32's, 95 % interval; torchao {metadata.version('torchao')}, 1 thread"
    )
    for size in SIZES:
        models = {"float32": random_model(size)}
        for scheme in SCHEMES:
            models[scheme] = copy.deepcopy(models["float32"])
            quantized(models[scheme], ModelSpec(model="random", weights=scheme))
        layers = {name: model.model.layers[0].self_attn.q_proj for name, model in models.items()}
        for tokens in TOKENS:
            seconds = measured(layers, torch.randn(tokens, size))
            once = np.ones(TURNS)
            ratios = [speedup(Paired(seconds[scheme], once, seconds["float32"], once)) for scheme in SCHEMES]
            words = [
                f"{scheme} {one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" if one else f"{scheme} -"
                for scheme, one in zip(SCHEMES, ratios, strict=True)
            ]
            print(f"  {size} inputs, {tokens} tokens: {', '.join(words)}")
    return 0


def random_model(size: int) -> LlamaForCausalLM:
    heads = size // 64
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=size,
        intermediate_size=size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@torch.inference_mode()
def measured(layers: dict[str, torch.nn.Module], rows: torch.Tensor) -> dict[str, np.ndarray]:
    """CPU seconds of each layer in each turn, the first of which is not counted."""
    seconds = {name: np.zeros(TURNS + 1) for name in layers}
    for turn, names in enumerate(by_turns(list(layers), TURNS + 1)):
        for name in names:
            began = process_time()
            for _ in range(20):
                layers[name](rows)
            seconds[name][turn] = process_time() - began
    return {name: values[1:] for name, values in seconds.items()}


if __name__ == "__main__":
    sys.exit(main())
