"""An exported model with PagedAttention, compiled for the CPU once for each choice of hidden states."""

from collections.abc import Hashable, Sequence, Set
from functools import cached_property
from typing import Any

import openvino as ov
import torch
from openvino import opset13 as op
from openvino._offline_transformations import paged_attention_transformation

from specbench.engine.runtimes.types import LAST
from specbench_extras.openvino.export import about
from specbench_extras.openvino.step import SMALL, Kind, Shape, Shapes, choosing, fixed

BLOCK = 32  # tokens in a block of the cache, on a CPU
KEYS, WINDOW = 3, 10  # inputs of PagedAttention: the cached keys, and how many tokens are read


def settings(threads: int) -> dict[str, Any]:
    """The settings of a compiled model: full precision everywhere, and all threads for one sequence."""
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
    """What all sequences of a model share: the compiled models."""

    def __init__(self, exported: Any, threads: int, parameters: int, dtype: torch.dtype = torch.float32) -> None:
        """`dtype` is that of hidden states, for the heads that read them; all is computed in float32."""
        self._exported, self.dtype = exported, dtype
        self.small = parameters <= SMALL
        self._threads = threads
        self._compiled: dict[Hashable, Any] = {}
        self.shapes = Shapes()
        facts = about(exported)
        self.states: int = facts["states"]
        self.features: int = facts["features"]
        self.windows: list[int] = facts["windows"]
        self.window: int = min((window for window in self.windows if window), default=0)  # the narrowest; 0: none

    @cached_property
    def forms(self) -> dict[str, list[int]]:
        """The shape [heads, BLOCK, size] of a block, for each input that is part of the cache."""
        shapes = {port.get_any_name(): port.get_partial_shape() for port in self.compiled(()).inputs}
        return {
            name: [size.get_length() for size in list(shape)[1:]] for name, shape in shapes.items() if "_cache." in name
        }

    def outputs(self, hidden: Sequence[int]) -> list[int]:
        """The index of the output for each hidden state, in a model that is compiled for these states.

        Raises IndexError for a state that the model does not have.
        """
        wanted = self._wanted(hidden)
        return [1 + sorted(set(wanted)).index(state) for state in wanted]

    def compiled(self, hidden: Sequence[int]) -> Any:
        """The compiled model that outputs only these hidden states. Models of different choices use the same cache.

        Without any it is fastest: it computes and keeps nothing for states that are not read.
        """
        wanted = frozenset(self._wanted(hidden))
        if wanted not in self._compiled:
            self._compiled[wanted] = self._compile(self._model(wanted))
        return self._compiled[wanted]

    def step(self, kind: Kind) -> Any:
        """The compiled form that chooses tokens one by one (see `openvino_step`); it uses the same cache."""
        if kind not in self._compiled:
            self._compiled[kind] = self._compile(choosing(self._model(), kind))
        return self._compiled[kind]

    def fix(self) -> None:
        """Compile forms for shapes that were fed often; they use the same cache. Other shapes go on as before."""
        for shape in self.shapes.chosen() if self.small else ():
            self._compiled[shape] = self._compile(fixed(self._model(), shape))

    def of_shape(self, shape: Shape) -> Any:
        """The form that `fix` compiled for a shape."""
        return self._compiled[shape]

    def _model(self, states: Set[int] = frozenset()) -> Any:
        """The model with PagedAttention that outputs logits and these hidden states."""
        model = self._exported.clone()
        for state, output in enumerate(list(model.outputs)[1:]):
            if state not in states:
                model.remove_result(output.get_node())
        paged_attention_transformation(model, allow_qq_bias=True)
        for node in model.get_ops():
            if node.get_type_name() == "PagedAttentionExtension":
                # The transformation recognises only some forms of windows, so set the model's own.
                layer = int(_source(node, KEYS).get_friendly_name().removeprefix("key_cache."))
                same = op.constant(self.windows[layer], dtype=_source(node, WINDOW).get_output_element_type(0))
                node.input(WINDOW).replace_source_output(same.output(0))
        return model

    def _compile(self, model: Any) -> Any:
        return ov.Core().compile_model(model, "CPU", settings(self._threads))

    def _wanted(self, hidden: Sequence[int]) -> list[int]:
        return [range(self.states)[self.states - 1 if state == LAST[0] else state] for state in hidden]


def _source(node: Any, index: int) -> Any:
    return node.input(index).get_source_output().get_node()
