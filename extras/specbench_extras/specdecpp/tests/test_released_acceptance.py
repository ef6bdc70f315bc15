"""Released acceptance heads, written here in the authors' layout and gone through by torch's own layers."""

import json

import pytest
import torch
from builders_engine import made
from refusals import one_line_error
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from specbench.cli import app
from specbench.engine.models.heads import read_head
from specbench.engine.models.pair import Pair
from specbench.methods.lengths import specdecpp
from specbench_extras import importer
from specbench_extras.specdecpp import released

WIDTH = 32
CPU = torch.device("cpu")


@pytest.fixture
def pair() -> Pair:
    return made()


def read(path, pair):
    return read_head(path, "specdecpp", pair, specdecpp.SHAPES, "draft")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + nn.functional.silu(self.linear(x))


class Head(nn.Module):
    def __init__(self, blocks: list[Block], width: int = WIDTH) -> None:
        super().__init__()
        self.model = nn.Sequential(*blocks, nn.Linear(width, 2))


def checkpoint(folder, head: Head, layers: int, kind: str = "safe", width: int = WIDTH):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"hidden_size": width, "num_layers": layers}))
    if kind == "pickled":
        torch.save(head.state_dict(), folder / "pytorch_model.bin")
    elif kind == "every":
        save_file({name: x.clone() for name, x in head.state_dict().items()}, folder / "model.safetensors")
    else:  # what several names share is stored once
        known: dict[int, str] = {}
        kept = {n: x for n, x in head.state_dict().items() if known.setdefault(x.data_ptr(), n) == n}
        save_file(kept, folder / "model.safetensors")
    return folder


def shared(layers: int) -> Head:
    torch.manual_seed(layers)
    return Head([Block(WIDTH)] * layers)


@pytest.mark.parametrize("kind", ("safe", "every", "pickled"))
@pytest.mark.parametrize("layers", (0, 1, 3))
def test_a_released_head_gives_what_its_own_layers_give(tmp_path, pair, monkeypatch, kind, layers):
    monkeypatch.setattr(importer, "load_models", lambda *_: pair)
    original, out = shared(layers), tmp_path / "h.safetensors"
    made_of = released.import_head(checkpoint(tmp_path / "best", original, layers, kind), "pocket", out)
    head = read(made_of, pair)
    assert (head.trained["depth"], head.trained["weight"], head.trained["released"]) == (layers, 6, "best")
    assert head.trained["shared_blocks"] is (layers > 1) and len(head.tensors["blocks.weight"]) == min(layers, 1)
    states = torch.randn(50, WIDTH)
    with torch.no_grad():
        expected = original.model(states).softmax(-1)[:, 1]
    values = specdecpp.acceptance_head(head, CPU).log_odds(states).sigmoid()
    assert torch.allclose(values, expected, atol=1e-6, rtol=0) and expected.std() > 0.05


def test_blocks_that_differ_are_kept_each(tmp_path, pair, monkeypatch):
    monkeypatch.setattr(importer, "load_models", lambda *_: pair)
    original = Head([Block(WIDTH) for _ in range(3)])
    folder = checkpoint(tmp_path / "own", original, 3)
    head = read(released.import_head(folder, "pocket", tmp_path / "h"), pair)
    assert head.tensors["blocks.weight"].shape[0] == 3 and not head.trained["shared_blocks"]
    states = torch.randn(50, WIDTH)
    with torch.no_grad():
        expected = original.model(states).softmax(-1)[:, 1]
    assert torch.allclose(specdecpp.acceptance_head(head, CPU).log_odds(states).sigmoid(), expected, atol=1e-6, rtol=0)


def with_config(folder, text: str):
    (folder / "config.json").write_text(text)


def pickled(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"model.0.linear.weight": CliRunner()}, folder / "pytorch_model.bin")


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def gap(folder):
    tensors = Head([Block(WIDTH) for _ in range(2)]).state_dict()
    del tensors["model.1.linear.bias"]
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"no file .*config.json"),
        (lambda folder: with_config(folder, "[3]"), r"no JSON object"),
        (lambda folder: with_config(folder, '{"num_layers": 2}'), r"config.json: hidden_size: field required"),
        (
            lambda folder: with_config(folder, f'{{"hidden_size": {WIDTH}, "num_layers": 3}}'),
            r"no acceptance head of 3 blocks",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), r"neither model.safetensors nor"),
        (cut, r"is damaged"),
        (pickled, r"is damaged"),
        (gap, r"no acceptance head of 2 blocks"),
    ],
)
def test_what_is_no_released_head_is_one_line(tmp_path, spoil, message):
    folder = checkpoint(tmp_path / "best", Head([Block(WIDTH) for _ in range(2)]), 2, "every")
    spoil(folder)
    with one_line_error(str(folder), match=message):
        released.AcceptanceImporter().read(folder)


def test_the_import_command(tmp_path, pair, monkeypatch):
    monkeypatch.setattr(importer, "load_models", lambda *_: pair)
    folder, out = checkpoint(tmp_path / "best", shared(3), 3), tmp_path / "head.safetensors"
    words = ["import", "specdecpp-head", str(folder)]
    for more, message in (
        (["--out", str(out)], "takes one folder, --pair"),
        (["--pair", "pocket", "--method", "x"], "nothing else"),
        (["--pair", "pocket", "--by-category"], "nothing else"),
    ):
        result = CliRunner().invoke(app, [*words, *more])
        assert result.exit_code == 2 and message in result.output
    result = CliRunner().invoke(app, [*words, "--pair", "pocket", "--out", str(out)])
    assert result.exit_code == 0 and "specdecpp.head=" in result.output
    assert read(out, pair).trained["depth"] == 3
    result = CliRunner().invoke(app, [*words, "--pair", "pocket", "--out", str(out)])
    assert result.exit_code == 2 and "exists" in result.output
    narrow = checkpoint(tmp_path / "narrow", Head([Block(16)], 16), 1, width=16)
    result = CliRunner().invoke(app, ["import", "specdecpp-head", str(narrow), "--pair", "pocket"])
    assert result.exit_code == 2 and "reads 16 values, but the draft of made has 32" in result.output
