"""The llamacpp runtime: llama.cpp on a CPU, with the weights of a GGUF file as they are."""

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from specbench.config import ModelSpec
from specbench.engine.runtimes.types import Runner, Runtime, Unsupported
from specbench_extras.llamacpp.in_file import check_installed, file_of, load_in_file

if TYPE_CHECKING:  # llama.cpp is an extra, which is not imported before it is used
    from specbench_extras.llamacpp.library import Weights

TIE = 1.0  # our estimate: what enters a product is rounded to 8 bits, and blocks of tens of tokens are summed otherwise


class LlamaCpp(Runtime):
    """Reads and checks each file once. Raises Unsupported without llama-cpp-python, or on another device."""

    name = "llamacpp"

    def __init__(self, device: torch.device) -> None:
        check_installed()
        if device.type != "cpu":
            raise Unsupported(f"the llamacpp runtime runs on a CPU and not on {device}; add --device cpu")
        self.seconds: dict[str, float] = {}
        self._threads = torch.get_num_threads()
        self._read: dict[Path, Weights] = {}
        self._checked: weakref.WeakSet[PreTrainedModel] = weakref.WeakSet()

    @staticmethod
    def load(spec: ModelSpec, device: torch.device, dtype: str) -> tuple[PreTrainedModel, dict[str, str]]:
        """As `load_in_file`."""
        return load_in_file(spec, device, dtype)

    def runner(self, model: PreTrainedModel) -> Runner:
        from specbench_extras.llamacpp.library import Weights
        from specbench_extras.llamacpp.runner import LlamaRunner, check

        file = file_of(model)
        if file is None:
            raise Unsupported(
                f"the llamacpp runtime reads GGUF files, and the weights of this {type(model).__name__} are in none; "
                "use --runtime static"
            )
        if file not in self._read:
            self._read[file] = Weights(file)
        if model not in self._checked:
            check(LlamaRunner(self._read[file], self._threads), model)
            self._checked.add(model)
        return LlamaRunner(self._read[file], self._threads)

    def tie(self, model: PreTrainedModel) -> float:
        return TIE

    def facts(self) -> dict[str, Any]:
        from specbench_extras.llamacpp.library import named, version

        return {"llama-cpp-python": version(), "llama.cpp": named(), "threads": self._threads, "cache": "f16"}
