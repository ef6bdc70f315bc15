"""The openvino runtime: OpenVINO's PagedAttention on a CPU. Each model is exported, compiled and checked once."""

import copy
import importlib.util
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from specbench.config import ModelSpec
from specbench.engine.models.identity import is_quantized
from specbench.engine.runtimes.types import Runner, Runtime, Unsupported

if TYPE_CHECKING:  # OpenVINO is an extra, which is not imported before it is used
    from specbench_extras.openvino.paged import Paged


class OpenVINO(Runtime):
    """Exports, compiles and checks each model once. Raises Unsupported without OpenVINO, or on another device."""

    name = "openvino"

    def __init__(self, device: torch.device) -> None:
        if importlib.util.find_spec("openvino") is None:
            raise Unsupported("the openvino runtime needs OpenVINO: pip install 'specbench-harness[openvino]'")
        if device.type != "cpu":
            raise Unsupported(f"the openvino runtime runs on a CPU and not on {device}; add --device cpu")
        self.seconds = {"export": 0.0, "compile": 0.0}
        self._threads = torch.get_num_threads()
        self._paged: weakref.WeakKeyDictionary[PreTrainedModel, Paged] = weakref.WeakKeyDictionary()

    @staticmethod
    def compressed(model: PreTrainedModel, spec: ModelSpec) -> str:
        """As `weights.compressed`."""
        from specbench_extras.openvino.weights import compressed

        return compressed(model, spec)

    def runner(self, model: PreTrainedModel) -> Runner:
        from specbench_extras.openvino.runner import PagedRunner

        if model not in self._paged:
            self._paged[model] = self._export(model)
        return PagedRunner(self._paged[model], self.timed)

    def settle(self) -> None:
        """Compile small models for the shapes that they were fed often."""
        with self.timed("compile"):
            for paged in self._paged.values():
                paged.fix()

    def facts(self) -> dict[str, Any]:
        import openvino as ov

        from specbench_extras.openvino.paged import BLOCK, settings

        return {"openvino": ov.get_version(), "block": BLOCK, "settings": settings(self._threads)}

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """A context whose time is added to the seconds of `what`."""
        began = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - began

    def _export(self, model: PreTrainedModel) -> "Paged":
        """Export, compile and check a model, in half precision with its weights widened.

        Raises Unsupported if that fails.
        """
        from specbench_extras.openvino.export import exported
        from specbench_extras.openvino.paged import Paged
        from specbench_extras.openvino.runner import PagedRunner, check

        if is_quantized(model):
            raise Unsupported(
                "the openvino runtime takes weights in float, or what it makes of them where --weights and --runtime "
                "openvino stand together; these are quantised otherwise: use --runtime static"
            )
        half = model.device.type == "cpu" and model.dtype in (torch.bfloat16, torch.float16)
        wide = copy.deepcopy(model).float() if half else model  # the same weights, and products in float32
        for again in (False, True):
            with self.timed("export"):
                export, from_cache = exported(wide, again)
            paged = Paged(export, self._threads, model.num_parameters(), model.dtype)
            try:
                check(paged, wide, PagedRunner(paged, self.timed))
                return paged
            except Unsupported:
                if not from_cache:
                    raise
                # The cached file may be damaged, or hold other weights than its name says: export again.
        raise AssertionError("a new export is not from the cache")
