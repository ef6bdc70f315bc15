"""OpenVINO on a CPU, by its PagedAttention: each model is exported, compiled and checked once."""

import importlib.util
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from specbench.runtimes.types import Runner, Unsupported

if TYPE_CHECKING:  # OpenVINO is an extra: nothing of it is imported before it is asked for
    from specbench.runtimes.openvino_paged import Paged


class OpenVINO:
    """Exports, compiles and checks each model once. Raises Unsupported without OpenVINO, or off the CPU."""

    name = "openvino"

    def __init__(self, device: torch.device) -> None:
        if importlib.util.find_spec("openvino") is None:
            raise Unsupported("the openvino runtime needs OpenVINO: pip install 'specbench-harness[openvino]'")
        if device.type != "cpu":
            raise Unsupported(f"the openvino runtime runs on a CPU and not on {device}; add --device cpu")
        self.seconds = {"export": 0.0, "compile": 0.0}
        self._threads = torch.get_num_threads()
        self._paged: weakref.WeakKeyDictionary[PreTrainedModel, Paged] = weakref.WeakKeyDictionary()

    def runner(self, model: PreTrainedModel) -> Runner:
        from specbench.runtimes.openvino_runner import PagedRunner

        if model not in self._paged:
            self._paged[model] = self._make(model)
        return PagedRunner(self._paged[model], self.timed)

    def settle(self) -> None: ...

    def facts(self) -> dict[str, Any]:
        import openvino as ov

        from specbench.runtimes.openvino_paged import BLOCK, settings

        return {"openvino": ov.get_version(), "block": BLOCK, "settings": settings(self._threads)}

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add what is done inside to the seconds of `what`."""
        began = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - began

    def _make(self, model: PreTrainedModel) -> "Paged":
        from specbench.runtimes.openvino_export import exported
        from specbench.runtimes.openvino_paged import Paged
        from specbench.runtimes.openvino_runner import PagedRunner, check

        if model.device.type != "cpu" or model.dtype != torch.float32:
            held = str(model.dtype).removeprefix("torch.")
            raise Unsupported(
                f"the openvino runtime computes in float32 on a CPU, and {type(model).__name__} is {held} on "
                f"{model.device}; add --device cpu --dtype float32"
            )
        for anew in (False, True):
            with self.timed("export"):
                found, old = exported(model, anew)
            paged = Paged(found, self._threads)
            try:
                check(paged, model, PagedRunner(paged, self.timed))
                return paged
            except Unsupported:
                if not old:
                    raise
                # The file may hold another model's numbers: damaged, or of weights that are none of its own.
        raise AssertionError("an export that was made anew is not old")
