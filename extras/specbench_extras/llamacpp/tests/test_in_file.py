"""A model whose weights stay in their GGUF file has shapes, settings and ends, and no numbers to compute with."""

import importlib.util

import pytest
import torch
from written_gguf import END, TURN, write

from specbench.config import ModelSpec, UserError
from specbench.engine.models.identity import is_quantized, stored_bytes
from specbench.engine.runtimes.types import Unsupported
from specbench_extras.llamacpp import in_file
from specbench_extras.llamacpp.in_file import check_kept, empty, file_of, load_in_file

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(in_file, "check_installed", lambda: None)


def test_it_is_the_model_of_the_file_without_its_numbers(tmp_path):
    file = tmp_path / "small.gguf"
    whole = write(file)
    model, facts = load_in_file(ModelSpec(model=str(file)), CPU, "auto")
    assert [(name, weight.shape) for name, weight in model.named_parameters()] == [
        (name, weight.shape) for name, weight in whole.named_parameters()
    ]
    assert file_of(model) == file and model.device == CPU and model.dtype == torch.float32
    assert model.generation_config.eos_token_id == [END, TURN]
    assert facts["weights_hash"] == facts["file_sha256"][:16] and "Q8_0" in facts["quantization"]
    assert sum(map(stored_bytes, model.parameters())) == pytest.approx(file.stat().st_size, abs=50)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_computing_with_it_is_refused_in_a_line(tmp_path):
    write(tmp_path / "small.gguf")
    model, _ = load_in_file(ModelSpec(model=str(tmp_path / "small.gguf")), CPU, "auto")
    assert is_quantized(model)
    for compute in (
        lambda: model(torch.tensor([[1, 2]])),
        lambda: model.model.embed_tokens.weight.double(),
        lambda: model.lm_head.weight[0],
        lambda: torch.nn.functional.linear(torch.zeros(1, 32), model.lm_head.weight),
    ):
        with pytest.raises(Unsupported, match=r"weights are llama.cpp's alone.*use --runtime static$"):
            compute()


def test_tied_weights_are_one():
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)])
    layers[1].weight = layers[0].weight
    empty(layers, 1800)
    assert layers[0].weight is layers[1].weight and layers[0].bias is not layers[1].bias
    assert stored_bytes(layers[0].weight) == 1200


@pytest.mark.parametrize(
    ("spec", "device", "dtype", "line"),
    [
        ({"model": "some/folder"}, "cpu", "auto", "GGUF files, and some/folder is none; name one, as in --target"),
        ({"model": "a.gguf", "adapter": "lora"}, "cpu", "auto", "takes no adapters; use --runtime static"),
        ({"model": "a.gguf", "layers": 2}, "cpu", "auto", "takes all layers of a file; use --runtime static"),
        ({"model": "a.gguf"}, "cpu", "bfloat16", "in the types of the file; leave out --dtype"),
        ({"model": "a.gguf"}, "cuda", "auto", "runs on a CPU and not on cuda; add --device cpu"),
    ],
)
def test_what_the_runtime_has_not_is_refused(spec, device, dtype, line):
    with pytest.raises(UserError, match=line):
        check_kept(ModelSpec(**spec), torch.device(device), dtype)


def test_without_the_package_a_line_says_what_installs_it(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"needs llama-cpp-python: pip install 'specbench-harness\[llamacpp\]'"):
        load_in_file(ModelSpec(model="a.gguf"), CPU, "auto")
