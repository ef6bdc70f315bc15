"""A model whose weights stay in their GGUF file, where llama.cpp reads them: shapes and settings, no numbers."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from specbench.base.hashes import short_hash
from specbench.base.hub import offline
from specbench.base.untrusted import brief
from specbench.config import ModelSpec, UserError
from specbench.engine.models.folders import is_gguf, model_folder
from specbench.engine.models.gguf_files import FILE, gguf_facts, gguf_file
from specbench.engine.models.identity import PACKED_BYTES
from specbench.engine.runtimes.types import Unsupported

ELSEWHERE = "use --runtime static"
INSTALL = "pip install 'specbench-harness[llamacpp]'"


class InFile(Tensor):
    """A weight of a shape, whose numbers are in the file. Whatever computes with it gets `Unsupported`."""

    @staticmethod
    def __new__(cls, shape: torch.Size) -> "InFile":
        made: InFile = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=torch.device("cpu"))  # type: ignore[attr-defined]
        return made

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return f"InFile({tuple(self.shape)})"

    def __tensor_flatten__(self) -> tuple[list[str], tuple[Any, ...]]:
        return [], (self.shape,)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return InFile(args[0].shape)
        raise Unsupported(
            f"on the llamacpp runtime the weights are llama.cpp's alone, and this computes with them; {ELSEWHERE}"
        )


def load_in_file(spec: ModelSpec, device: torch.device, dtype: str) -> tuple[PreTrainedModel, dict[str, str]]:
    """The model of a GGUF file without its numbers, and what the manifest keeps of the file.

    Raises:
        UserError: the file is not there or is damaged, or what is asked for would need the numbers.
    """
    check_installed()
    check_kept(spec, device, dtype)
    folder = model_folder(spec, weights=False)
    try:
        with offline(), torch.device("meta"):
            settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(settings)
    except Exception as error:  # a damaged folder fails in any way within transformers
        raise UserError(f"cannot load {spec.model}: {brief(error)}; get the file again") from None
    model.generation_config = GenerationConfig.from_pretrained(folder)
    facts = gguf_facts(folder)
    file = gguf_file(spec)
    if spec.weights:
        from specbench_extras.llamacpp.library import quantised  # here, as llama.cpp may be missing

        file, facts["weights"] = quantised(file, spec, facts["file_sha256"])
        facts["weights_hash"] = short_hash(facts["file_sha256"] + facts["weights"])
    else:
        facts["weights_hash"] = facts["file_sha256"][:16]
    empty(model, file.stat().st_size)
    setattr(model, FILE, file)
    return model.eval(), facts


def check_installed() -> None:
    """Raise Unsupported without llama-cpp-python."""
    if importlib.util.find_spec("llama_cpp") is None:
        raise Unsupported(f"the llamacpp runtime needs llama-cpp-python: {INSTALL}")


def check_kept(spec: ModelSpec, device: torch.device, dtype: str) -> None:
    """Raise Unsupported for a model that is in no GGUF file, or that is asked for in a way that llama.cpp has not."""
    if not is_gguf(spec.model):
        raise Unsupported(
            f"the llamacpp runtime reads GGUF files, and {spec.model} is none; name one, as in --target FILE.gguf, or "
            f"{ELSEWHERE}"
        )
    if spec.adapter:
        raise Unsupported(f"{spec.model}: the llamacpp runtime takes no adapters; {ELSEWHERE}")
    if spec.layers:
        raise Unsupported(f"{spec.model}: the llamacpp runtime takes all layers of a file; {ELSEWHERE}")
    if dtype != "auto":
        raise Unsupported(f"the llamacpp runtime computes in the types of the file; leave out --dtype, or {ELSEWHERE}")
    if device.type != "cpu":
        raise Unsupported(f"the llamacpp runtime runs on a CPU and not on {device}; add --device cpu")


def empty(model: nn.Module, size: int) -> None:
    """Let the weights and buffers of a model, in place, be those of a file of `size` bytes; tied ones stay tied."""
    made: dict[int, nn.Parameter] = {}
    total = sum(weight.numel() for weight in model.parameters())
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if id(weight) not in made:
                made[id(weight)] = nn.Parameter(InFile(weight.shape), requires_grad=False)
                setattr(made[id(weight)], PACKED_BYTES, round(size * weight.numel() / total))
            setattr(module, name, made[id(weight)])
        for name, buffer in list(module.named_buffers(recurse=False)):
            module.register_buffer(name, InFile(buffer.shape), persistent=False)


def file_of(model: PreTrainedModel) -> Path | None:
    """The GGUF file that has a model's weights, number for number; None if there is none."""
    file: Path | None = getattr(model, FILE, None)
    return file
