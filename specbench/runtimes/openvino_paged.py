"""An exported model with PagedAttention, compiled for the CPU: once for each choice of hidden states."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import openvino as ov
from openvino import opset13 as op
from openvino._offline_transformations import paged_attention_transformation

from specbench.runtimes.openvino_export import about
from specbench.runtimes.types import LAST

BLOCK = 32  # tokens in a block of the cache, on a CPU
KEYS, WINDOW = 3, 10  # inputs of PagedAttention: the cached keys, and how many tokens are read


def settings(threads: int) -> dict[str, Any]:
    """Full precision everywhere, and all threads for the one sequence."""
    return {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,
    }


class Paged:
    """What all sequences of a model have in common."""

    def __init__(self, exported: Any, threads: int) -> None:
        self._exported = exported
        self._threads = threads
        self._compiled: dict[frozenset[int], Any] = {}
        told = about(exported)
        self.states: int = told["states"]
        self.features: int = told["features"]
        self.windows: list[int] = told["windows"]
        self.window: int = min((one for one in self.windows if one), default=0)  # the narrowest; 0: none

    @cached_property
    def forms(self) -> dict[str, list[int]]:
        """Of each input that is part of the cache [blocks, heads, BLOCK, size], all but the first."""
        shapes = {one.get_any_name(): one.get_partial_shape() for one in self.compiled(()).inputs}
        return {
            name: [one.get_length() for one in list(shape)[1:]] for name, shape in shapes.items() if "_cache." in name
        }

    def outputs(self, hidden: Sequence[int]) -> list[int]:
        """Which output each of the hidden states is, in a model that is compiled for them. Raises IndexError."""
        wanted = self._wanted(hidden)
        return [1 + sorted(set(wanted)).index(one) for one in wanted]

    def compiled(self, hidden: Sequence[int]) -> Any:
        """The model with only these hidden states; those of different choices share nothing but the form of the cache.

        One that gives none is the fastest: nothing is computed, or kept, for states that nobody reads.
        """
        wanted = frozenset(self._wanted(hidden))
        if wanted not in self._compiled:
            model = self._exported.clone()
            for state, output in enumerate(list(model.outputs)[1:]):
                if state not in wanted:
                    model.remove_result(output.get_node())
            paged_attention_transformation(model, allow_qq_bias=True)
            for node in model.get_ops():
                if node.get_type_name() == "PagedAttentionExtension":
                    # The transformation knows some forms of windows; what the model itself says holds for all.
                    layer = int(_source(node, KEYS).get_friendly_name().removeprefix("key_cache."))
                    same = op.constant(self.windows[layer], dtype=_source(node, WINDOW).get_output_element_type(0))
                    node.input(WINDOW).replace_source_output(same.output(0))
            self._compiled[wanted] = ov.Core().compile_model(model, "CPU", settings(self._threads))
        return self._compiled[wanted]

    def _wanted(self, hidden: Sequence[int]) -> list[int]:
        return [range(self.states)[self.states - 1 if one == LAST[0] else one] for one in hidden]


def _source(node: Any, index: int) -> Any:
    return node.input(index).get_source_output().get_node()
