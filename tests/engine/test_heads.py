"""Heads that read a draft model: whose they are, shapes of any size, and those that others released."""

import json
import math

import oracle
import pytest
import torch
from builders_engine import made, retold
from chains import Words
from made_runs import TOKENIZER
from refusals import one_line_error
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from specbench.cli import app
from specbench.config import UserError
from specbench.config import load_pair as load_pair_spec
from specbench.engine.models import heads
from specbench.engine.models.heads import SHIPPED, fingerprint, read_head, write_head
from specbench.engine.models.pair import Pair, load_pair
from specbench.methods.lengths import specdecpp
from specbench.methods.lossy import judge
from specbench.training.specdecpp import released

WIDTH = 32
CPU = torch.device("cpu")


def tensors(blocks: int = 2, width: int = WIDTH) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    shapes = {"blocks.weight": (blocks, width, width), "blocks.bias": (blocks, width)}
    shapes |= {"out.weight": (2, width), "out.bias": (2,)}
    return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}


@pytest.fixture
def pair() -> Pair:
    return made()


@pytest.fixture
def file(tmp_path, pair):
    path = tmp_path / "head.safetensors"
    write_head(path, "specdecpp", tensors(), pair, {"depth": 2}, "draft")
    return path


def read(path, pair):
    return read_head(path, "specdecpp", pair, specdecpp.SHAPES, "draft")


@pytest.mark.parametrize("blocks", (0, 1, 2, 5))
def test_any_number_of_blocks_comes_back(tmp_path, pair, blocks):
    write_head(tmp_path / "h", "specdecpp", tensors(blocks), pair, {"depth": blocks}, "draft")
    loaded = read(tmp_path / "h", pair)
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in tensors(blocks).items())
    assert specdecpp.acceptance_head(loaded, CPU).log_odds(torch.randn(7, WIDTH)).shape == (7,)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"blocks.weight": torch.zeros(WIDTH, WIDTH)}, "not those of a head for specdecpp"),
        ({"more": torch.zeros(1)}, "no place for, more"),
        ({"out.bias": torch.tensor([0, torch.inf])}, "not finite"),
    ],
)
def test_tensors_that_are_no_acceptance_head(tmp_path, pair, spoil, message):
    write_head(tmp_path / "h", "specdecpp", {**tensors(), **spoil}, pair, {"depth": 2}, "draft")
    with pytest.raises(UserError, match=message):
        read(tmp_path / "h", pair)


def test_sizes_that_are_named_must_be_met(file, pair):
    exact = {name: tuple(tensor.shape) for name, tensor in tensors().items()}
    assert read_head(file, "specdecpp", pair, exact, "draft").trained == {"depth": 2}
    with pytest.raises(UserError, match="not those of a head for specdecpp"):
        read_head(file, "specdecpp", pair, {**exact, "blocks.weight": (-1, WIDTH, 31)}, "draft")


@pytest.mark.parametrize(
    ("spoil", "trained"),
    [
        ({"blocks.weight": torch.zeros(2, WIDTH, 31)}, {"depth": 2}),
        ({"out.weight": torch.zeros(2, WIDTH + 1)}, {"depth": 2}),
        ({"out.weight": torch.zeros(2, WIDTH - 1)}, {"depth": 2}),
        ({}, {"depth": 3}),
        ({}, {}),
        ({}, {"depth": math.inf}),
    ],
)
def test_layers_that_do_not_fit_together(tmp_path, pair, spoil, trained):
    write_head(tmp_path / "h", "specdecpp", {**tensors(), **spoil}, pair, trained, "draft")
    with pytest.raises(UserError, match="is damaged"):
        specdecpp.acceptance_head(read(tmp_path / "h", pair), CPU)


def test_a_head_of_the_draft_belongs_to_both_models(file, pair):
    changed = [oracle.tiny("llama", seed=5) for _ in range(2)]
    assert fingerprint(changed[0]) not in {fingerprint(model) for model in pair.models.values()}
    for other, message in (
        (made(target=changed[0]), "whose target has different weights"),
        (made(draft=changed[1]), "whose draft has different weights"),
        (made(draft=oracle.tiny("llama", hidden_size=40)), "reads 32 values, but the draft of made has 40"),
        (Pair("made", pair.models, Words()), "another tokenizer"),
        (Pair("made", {"target": pair.models["target"]}, TOKENIZER), "has no draft model"),
    ):
        with one_line_error(message):
            read(file, other)


def test_a_head_of_the_target_belongs_to_that_alone(tmp_path, pair):
    write_head(tmp_path / "h", "judge", {"weight": torch.ones(WIDTH), "bias": torch.tensor(0.0)}, pair, {})
    assert (
        read_head(tmp_path / "h", "judge", made(draft=oracle.tiny("llama", seed=5)), judge.shapes(pair)).trained == {}
    )


def test_a_target_in_fewer_bits_is_another_target():
    spec = load_pair_spec("pocket")
    int8 = spec.model_copy(update={"target": spec.target.model_copy(update={"weights": "int8"}), "draft": None})
    first, again = (load_pair(int8, "cpu") for _ in range(2))
    assert fingerprint(first.models["target"]) == fingerprint(again.models["target"])
    with one_line_error("whose target has different weights"):
        read_head(SHIPPED / "eagle3-pocket.safetensors", "eagle3", first, None)


def test_what_ships_with_a_pair_serves_others_of_the_models_that_it_reads(tmp_path, pair, monkeypatch):
    monkeypatch.setattr(heads, "SHIPPED", tmp_path)
    judged = {"weight": torch.ones(WIDTH), "bias": torch.tensor(0.0)}
    write_head(tmp_path / "judge-made.safetensors", "judge", judged, pair, {})
    write_head(tmp_path / "specdecpp-made.safetensors", "specdecpp", tensors(), pair, {}, "draft")
    renamed = Pair("other", pair.models, TOKENIZER)
    stronger = Pair("other", pair.models | {"draft": oracle.tiny("llama", seed=5)}, TOKENIZER)
    larger = Pair("other", pair.models | {"target": oracle.tiny("llama", seed=6)}, TOKENIZER)
    results = [
        [heads.shipped(kind, one, reads) is not None for one in (pair, renamed, stronger, larger)]
        for kind, reads in (("judge", "target"), ("specdecpp", "draft"))
    ]
    assert results == [[True, True, True, False], [True, True, False, False]]
    assert heads.shipped("judge", Pair("other", pair.models, Words())) is None


def test_who_is_read_must_agree(file, pair):
    with pytest.raises(UserError, match="it reads the draft, and a head for specdecpp reads the target"):
        read_head(file, "specdecpp", pair, specdecpp.SHAPES)
    retold(file, draft=None)
    with pytest.raises(UserError, match="whose draft has different weights"):
        read(file, pair)


def test_heads_from_before_they_said_whom_they_read(pocket):
    """The shipped judge is one of them."""
    head = read_head(SHIPPED / "judge-pocket.safetensors", "judge", pocket, judge.shapes(pocket))
    assert head.trained["swaps"] > 0 and head.tensors["weight"].std() > 0


# Released heads, written here in the authors' layout and gone through by torch's own layers


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
    monkeypatch.setattr(released, "load_models", lambda *_: pair)
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
    monkeypatch.setattr(released, "load_models", lambda *_: pair)
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
        released.read_released(folder)


def test_the_import_command(tmp_path, pair, monkeypatch):
    monkeypatch.setattr(released, "load_models", lambda *_: pair)
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
