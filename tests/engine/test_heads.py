"""Heads that read a draft model: whose they are, and shapes of any size."""

import math

import oracle
import pytest
import torch
from builders_engine import made, retold
from chains import Words
from made_runs import TOKENIZER
from refusals import one_line_error

from specbench.config import UserError
from specbench.config import load_pair as load_pair_spec
from specbench.engine.models import heads
from specbench.engine.models.heads import SHIPPED, fingerprint, read_head, write_head
from specbench.engine.models.pair import Pair, load_pair
from specbench.methods.lengths import specdecpp
from specbench.methods.lossy import judge

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
