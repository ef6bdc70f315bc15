"""The memory that weights need, from the headers of their files: against the bytes of the models that are loaded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from oracle import tiny
from refusals import one_line_error
from test_models import save
from word_models import pair_of

from specbench.engine.models import room
from specbench.engine.models.pair import load_pair
from specbench.engine.models.room import Coming, peak, sizes

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tmp_path_factory.mktemp("llama"), tiny("llama"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sizes_are_those_of_the_loaded_model(saved, tmp_path, dtype):
    tiny("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = load_pair(pair_of(saved), "cpu", str(dtype).removeprefix("torch.")).models["target"]
    taken = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    inner = sum(weight.numel() for weight in model.model.layers.parameters() if weight.ndim == 2)
    for folder in (Path(saved.model), tmp_path):
        assert sizes(folder, dtype) == (taken, inner * dtype.itemsize)
    assert sizes(tmp_path, None)[0] == sum(weight.numel() * 8 for weight in model.parameters()), "as stored: float64"


def test_the_peak_of_models_that_are_quantised_one_after_another(saved, tmp_path):
    """Whole weights of one model at a time, what is left of those before it: int8 leaves a byte, int4 half of one."""
    whole, matrices = sizes(Path(saved.model), torch.float32)

    def coming(*schemes):
        specs = [saved.model_copy(update={"weights": scheme}) for scheme in schemes]
        return [Coming(spec, Path(spec.model), torch.float32) for spec in specs]

    assert peak(coming(None), CPU) == peak(coming("int8"), CPU) == whole
    assert peak(coming(None, None), CPU) == 2 * whole
    assert peak(coming("int8", "int8"), CPU) == 2 * whole - matrices * 3 // 4
    assert peak(coming("int4", None), CPU) == 2 * whole - matrices + matrices // 8


def test_too_little_memory_is_told_before_loading(saved, monkeypatch):
    needed = sizes(Path(saved.model), torch.float32)[0]
    monkeypatch.setattr(room, "free_memory", lambda device: needed)
    load_pair(pair_of(saved), "cpu")
    monkeypatch.setattr(room, "GIB", 1)
    monkeypatch.setattr(room, "free_memory", lambda device: needed - 1)
    with one_line_error(f"needs {needed:.1f} GiB", f"{needed - 1:.1f} GiB are free on cpu", "--weights int8"):
        load_pair(pair_of(saved), "cpu")


def test_a_system_that_does_not_tell_its_memory(saved, monkeypatch):
    def untold(device):
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(room, "free_memory", untold)
    assert load_pair(pair_of(saved), "cpu").models


def test_weights_that_are_too_large_to_be_mapped(saved, tmp_path):
    """A file with holes says that it has 8 TB; those whose header does not fit to it count nothing."""
    folder, count = tmp_path / "huge", 4 * 10**12
    shutil.copytree(saved.model, folder)
    path, header = (
        folder / "model.safetensors",
        {"w": {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}},
    )
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        try:
            file.truncate(8 + len(text) + 2 * count)
        except OSError:
            pytest.skip("no files with holes here")
    with one_line_error("needs 14901.2 GiB for its weights"):  # in float32
        load_pair(pair_of(saved.model_copy(update={"model": str(folder)})), "cpu")
    for damaged in (text[:-1] + b",", text[:9], text.replace(b"[0, ", b"[0, 1"), b"[" * 100_000, b"[]", b'{"w": 3}'):
        path.write_bytes(len(text).to_bytes(8, "little") + damaged)
        assert sizes(folder, None) == (0, 0)
    path.write_bytes((2**60).to_bytes(8, "little"))
    assert sizes(folder, None) == (0, 0)


def test_what_a_method_keeps_is_said_once_before_it_is_taken(monkeypatch, capsys):
    """One weight of 1,000 numbers in float32: seven times 4,000 bytes; in bfloat16 three times 2,000 and four 4,000."""
    for dtype, expected in ((torch.float32, 28_000), (torch.bfloat16, 22_000)):
        assert room.learning_bytes(torch.nn.Linear(1000, 1, bias=False, dtype=dtype)) == expected
    monkeypatch.setattr(room, "GIB", 1000)
    monkeypatch.setattr(room, "free_memory", lambda device: 30_000)
    for _ in range(2):
        room.announce("osd", "a second draft", 28_000, CPU)
    room.announce("osd", "a small draft", 500, CPU)
    assert capsys.readouterr().out == "osd keeps a second draft: 28.0 GiB more\n"
    with one_line_error("osd keeps a third draft, 31.0 GiB, and 30.0 GiB are free on cpu"):
        room.announce("osd", "a third draft", 31_000, CPU)
