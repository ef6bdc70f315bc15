"""What weights in fewer bits cost on a CPU: CPU seconds over those in float32, by turns.

Of a linear layer (torch's own kernels), and of a forward of a Llama of one layer on `openvino` (NNCF, which `make
bench-peers` installs). Run by `make bench`. One thread.
"""

import copy
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
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
    torch.set_num_threads(1)
    for package, measure in (("torch", of_layers), ("nncf", on_openvino)):
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed: make bench-peers")
            continue
        print(f"CPU seconds over float32's, 95 % interval; {package} {metadata.version(package)}, 1 thread")
        for size in SIZES:
            measure(size)
    return 0


def of_layers(size: int) -> None:
    """A square layer, eager."""
    models = {"float32": random_model(size)}
    for scheme in SCHEMES:
        models[scheme] = copy.deepcopy(models["float32"])
        quantized(models[scheme], ModelSpec(model="random", weights=scheme))
    layers = {name: model.model.layers[0].self_attn.q_proj for name, model in models.items()}
    for tokens in TOKENS:
        rows = torch.randn(tokens, size)
        show(
            f"a layer of {size} inputs, {tokens} tokens", {name: partial(layer, rows) for name, layer in layers.items()}
        )


def on_openvino(size: int) -> None:
    """A forward of a model of one layer."""
    from specbench_extras.openvino.runtime import OpenVINO
    from specbench_extras.openvino.weights import compressed

    models = {"float32": random_model(size)}
    runtime, runners = OpenVINO(torch.device("cpu")), {}
    for scheme in SCHEMES:
        models[scheme] = copy.deepcopy(models["float32"])
        compressed(models[scheme], ModelSpec(model="random", weights=scheme))
    for name, model in models.items():
        runners[name] = runtime.runner(model)

    def forward(name: str, ids: torch.Tensor) -> None:
        runners[name].truncate(0)
        runners[name].forward(ids, 0, (), None, None)

    for tokens in TOKENS:
        ids = torch.arange(tokens) % 32
        calls = {name: partial(forward, name, ids) for name in runners}
        show(f"a forward of {size} hidden units on openvino, {tokens} tokens", calls)


def show(what: str, calls: dict[str, Callable[[], object]]) -> None:
    seconds, once = measured(calls), np.ones(TURNS)
    ratios = {scheme: speedup(Paired(seconds[scheme], once, seconds["float32"], once)) for scheme in SCHEMES}
    words = [
        f"{scheme} {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else f"{scheme} -"
        for scheme, ratio in ratios.items()
    ]
    print(f"  {what}: {', '.join(words)}", flush=True)


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
def measured(calls: dict[str, Callable[[], object]]) -> dict[str, np.ndarray]:
    """CPU seconds of each call in each turn, the first of which is not counted."""
    seconds = {name: np.zeros(TURNS + 1) for name in calls}
    for turn, names in enumerate(by_turns(list(calls), TURNS + 1)):
        for name in names:
            began = process_time()
            for _ in range(20):
                calls[name]()
            seconds[name][turn] = process_time() - began
    return {name: values[1:] for name, values in seconds.items()}


if __name__ == "__main__":
    sys.exit(main())
