"""Weights in fewer bits: the numbers by hand, real bytes, what the manifest tells, and what is refused."""

import json

import gguf
import numpy as np
import pytest
import torch
from gates import decode
from oracle import tiny
from refusals import one_line_error
from test_models import PROMPT, save
from word_models import pair_of

from specbench.config import ModelSpec, PairSpec, validated, with_weights
from specbench.config import load_pair as read_pair
from specbench.engine.models import cost, packed, quantize
from specbench.engine.models.identity import is_quantized
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes.products import product
from specbench.engine.runtimes.reference import off
from specbench.engine.runtimes.static import STATIC
from specbench.engine.runtimes.types import Unsupported
from specbench.engine.session import Session
from specbench_extras.openvino.runtime import OpenVINO

WIDE = {"hidden_size": 64, "intermediate_size": 96}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> ModelSpec:
    return save(tmp_path_factory.mktemp("llama"), tiny("llama", **WIDE))


def as_stored(model: torch.nn.Module, scheme: str) -> torch.nn.Module:
    """The model in float, with the numbers that a quantised one multiplies by: what it makes of the identity.

    Each is at most half a step from the weight that it stands for, but for the rounding of scales to bfloat16: one is
    1/127 of a row's largest weight in int8, and 1/15 of the range of 32 inputs in int4.
    """
    plain = tiny("llama", **WIDE).float()
    for (name, module), quantised in zip(plain.named_modules(), model.modules(), strict=True):
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        weight = module.weight.detach()
        stands_for = torch.nn.functional.linear(torch.eye(weight.shape[1]), quantised.weight).t()
        parts = weight.reshape(-1, 32) if scheme == "int4" else weight
        step = (parts.amax(1) - parts.amin(1)) / 15 if scheme == "int4" else parts.abs().amax(1) / 127
        error = (stands_for.reshape(parts.shape) - parts).abs()
        rounding = 2**-7 * parts.abs().amax(1)  # of scales, zero points and the product
        assert (error <= 0.5 * step[:, None] + rounding[:, None]).all()
        with torch.no_grad():
            module.weight.copy_(stands_for)
    return plain


@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("runtime", ["eager", "static"])
def test_quantised_weights_are_the_rounded_ones(saved, scheme, runtime):
    pair = load_pair(pair_of(saved.model_copy(update={"weights": scheme}), saved), "cpu")
    model = pair.models["target"]
    session = Session(model, "target", runtime=STATIC) if runtime == "static" else Session(model, "target")
    expected = as_stored(model, scheme)
    with torch.no_grad():
        logits = expected(torch.tensor([PROMPT])).logits[0]
    assert off(session.forward(PROMPT).logits, logits) < 0.2  # activations are rounded to bfloat16, of 9 bits
    plain = tiny("llama", **WIDE).float()
    with torch.no_grad():
        unrounded = plain(torch.tensor([PROMPT])).logits[0]
        torch.testing.assert_close(pair.session("draft").forward(PROMPT).logits, unrounded)
    assert is_quantized(model) and not is_quantized(pair.models["draft"])


def test_weights_that_16_levels_hold_are_kept_exactly():
    """By hand: a group of 32 from -1.75 to 2 in steps of 1/4, each level twice, and inputs that are small integers."""
    levels = torch.arange(32) % 16
    layer = torch.nn.Linear(64, 32, bias=True)
    weight = torch.stack([torch.cat([levels.roll(i), levels.roll(3 * i)]) for i in range(32)]) * 0.25 - 1.75
    inputs = torch.arange(3 * 64).reshape(3, 64) % 5 - 2.0
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(torch.arange(32.0))
        packed.pack(layer, 32)
        for rows in (inputs, inputs[:1]):
            exact = (rows.double() @ weight.double().t()).to(torch.bfloat16).float() + torch.arange(32.0)
            assert torch.equal(layer(rows), exact)


def q4_k(rows, columns, seed=0):
    """A random weight as the format defines Q4_K: 4 bits, times a scale of 6 bits, less a minimum of 6 bits."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows, columns // 256, 144), np.uint8)
    blocks[..., :4] = np.array([0.01, 0.02], np.float16).view(np.uint8)
    # Few groups use all their levels: the numbers are from 3 to 12.
    low, high = (3 + (blocks[..., 16:] & 15) % 10), (3 + (blocks[..., 16:] >> 4) % 10)
    blocks[..., 16:] = low | (high << 4)
    return torch.from_numpy(gguf.dequantize(blocks.reshape(rows, -1), gguf.GGMLQuantizationType.Q4_K).copy())


def stands_for(weight, group):
    """What a packed weight multiplies by."""
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        layer.weight = torch.nn.Parameter(weight)
        packed.pack(layer, group)
        return layer(torch.eye(weight.shape[1])).t()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_what_a_file_has_in_4_bits_is_kept_but_for_the_rounding_of_scales(kind, dtype):
    """Levels that no number of a group is on do not move the others: Q4_0 has those as a rule, Q4_K often."""
    if kind == "Q4_K":
        weight = q4_k(64, 512)
    else:
        normal = np.random.default_rng(1).normal(size=(64, 512)).astype(np.float32)
        of_file = gguf.GGMLQuantizationType[kind]
        weight = torch.from_numpy(gguf.dequantize(gguf.quantize(normal, of_file), of_file).copy())
    assert packed.on_levels(weight.to(dtype), 32)
    error = (stands_for(weight.to(dtype), 32).float() - weight).abs()
    # Roundings of 9 bits: of scale, zero point and product. Half a step of 15 would be twice as much, and all moved.
    share = error.reshape(-1, 32) / weight.reshape(-1, 32).abs().amax(1)[:, None]
    assert share.max() < 2**-6 and share.mean() < 2**-9


def test_what_lies_on_no_levels_spans_the_range():
    normal = torch.randn(64, 512, generator=torch.Generator().manual_seed(2))
    assert not packed.on_levels(normal, 32) and not packed.on_levels(normal.bfloat16(), 32)
    eight = gguf.GGMLQuantizationType.Q8_0
    on_256 = gguf.dequantize(gguf.quantize(normal.numpy(), eight), eight)
    assert not packed.on_levels(torch.from_numpy(on_256.copy()), 32)


def test_layers_of_a_file_that_has_them_in_more_bits_are_in_int8(saved, monkeypatch):
    pair = load_pair(pair_of(saved), "cpu")
    model = pair.models["target"]
    levels = {name for name, module in model.named_modules() if name.endswith("up_proj")}
    with torch.no_grad():
        for name in levels:
            model.get_submodule(name).weight.copy_(torch.arange(64) % 16 / 8)
    words = quantize.quantized(model, ModelSpec(model="some.gguf", weights="int4"))
    kinds = {
        name: module.weight.group
        for name, module in model.named_modules()
        if hasattr(module, "weight") and hasattr(module.weight, "group")
    }
    assert {name for name, group in kinds.items() if group == 32} == levels and len(kinds) == 14
    assert "int4 in groups of 32, " in words and " of the parameters, int8, " in words


@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (1024, 1024)])
def test_a_row_has_the_same_bits_among_others(scheme, inputs, outputs):
    """In sums of weights that are computed in one call, and of those whose last rows are a call of their own."""
    layer = torch.nn.Linear(inputs, outputs, bias=False)
    packed.pack(layer, 32 if scheme == "int4" else None)
    assert scheme == "int8" or (layer.weight.numbers.numel() >= packed.LARGE) == (inputs > 64)
    rows = torch.randn(16, inputs, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        together = layer(rows)
        assert len(together.unique()) > 100
        for width in range(1, 10):
            assert torch.equal(torch.cat([layer(part) for part in rows.split(width)]), together), width


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_layers_with_one_input_are_one_product_of_the_same_bits(scheme):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(96, out, bias=True) for out in (128, 64, 32)]
    for layer in layers:
        packed.pack(layer, 32 if scheme == "int4" else None)
    with torch.no_grad():
        together = product(layers)
        assert type(together).__name__ == "FewBits"
        for count in (1, 5):
            rows = torch.randn(count, 96)
            assert torch.equal(together(rows), torch.cat([layer(rows) for layer in layers], 1))
        assert type(product([layers[2], layers[0]])).__name__ == ("Called" if scheme == "int4" else "FewBits")
        one = torch.nn.Linear(96, 64, bias=True)
        packed.pack(one, None if scheme == "int4" else 32)
        assert type(product([torch.nn.Identity(), one])).__name__ == "Called"


def test_bytes_are_those_that_weights_take(saved):
    """Rows of 64 or 96 inputs: int8 has a byte for each weight, and for each row a scale of two bytes."""
    whole, small = (
        cost.facts(load_pair(pair_of(saved.model_copy(update={"weights": scheme})), "cpu").models["target"])
        for scheme in (None, "int8")
    )
    shapes = 2 * [(32, 64), (16, 64), (16, 64), (64, 32), (96, 64), (96, 64), (64, 96)]
    matrices, rows = sum(out * inputs for out, inputs in shapes), sum(out for out, _ in shapes)
    assert whole["weight_bytes"] - small["weight_bytes"] == 3 * matrices - 2 * rows
    assert whole["matrix_weights"] == small["matrix_weights"] == matrices
    assert {**whole, "weight_bytes": 0} == {**small, "weight_bytes": 0}


def test_the_manifest_tells_the_scheme(saved):
    described = [
        load_pair(pair_of(saved.model_copy(update=changes)), "cpu").describe()["target"]
        for changes in ({}, {"weights": "int8"}, {"weights": "int4"}, {"weights": "int4", "group": 32})
    ]
    assert "weights" not in described[0]
    assert described[1]["weights"].startswith("int8, ") and ", torch 2" in described[1]["weights"]
    assert described[2]["weights"].startswith("int4 in groups of 32, ")
    hashes = [facts["weights_hash"] for facts in described]
    assert len(set(hashes)) == 3 and hashes[2] == hashes[3]


def test_a_target_that_drafts_for_itself_in_fewer_bits(saved):
    spec = validated(
        PairSpec,
        {"name": "self", "description": "", "target": saved.model_dump(), "draft": {"of": "target", "weights": "int8"}},
        "pair.yaml",
    )
    pair = load_pair(spec, "cpu")
    assert pair.describe()["draft"]["weights"].startswith("int8") and "weights" not in pair.describe()["target"]
    from builders_engine import build

    text, rounds = decode(build(pair, "sps", gamma=4), PROMPT, 24)
    assert text == decode(build(pair, "vanilla"), PROMPT, 24)[0]
    assert sum(r.accepted for r in rounds) > len(rounds), "it agrees with itself more often than not"


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"weights": "int4", "group": 48}, "groups of 48"), ({"weights": "int4", "group": 128}, "groups of 128")],
)
def test_layers_that_do_not_divide(saved, changes, words):
    with one_line_error(words, "use int8"):
        load_pair(pair_of(saved.model_copy(update=changes)), "cpu")


def test_weights_that_are_not_finite_afterwards(tmp_path):
    model = tiny("llama", **WIDE)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] = float("inf")
    spec = save(tmp_path, model).model_copy(update={"weights": "int8"})
    with one_line_error("model.layers.1.mlp.up_proj", "not finite"):
        load_pair(pair_of(spec), "cpu")


def test_openvino_takes_float_weights_only(saved):
    model = load_pair(pair_of(saved.model_copy(update={"weights": "int8"})), "cpu").models["target"]
    with pytest.raises(Unsupported, match="weights in float"):
        OpenVINO(torch.device("cpu")).runner(model)


def test_what_trains_a_copy_needs_float(saved):
    pair = load_pair(pair_of(saved, saved.model_copy(update={"weights": "int8"})), "cpu")
    quantize.need_float(pair.models["target"], "x")
    with one_line_error("osd trains a copy of the draft, and its weights are in fewer bits"):
        quantize.need_float(pair.models["draft"], "osd trains a copy of the draft")


def test_fp8_is_for_gpus(saved):
    with one_line_error("fp8 needs a GPU", "int8 or int4"):
        load_pair(pair_of(saved.model_copy(update={"weights": "fp8"})), "cpu")


METHODS = {
    "gptq": "gptqmodel",
    "awq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "torchao": "torchao",
    "hqq": "hqq",
    "fp8": "accelerate",
}


@pytest.mark.parametrize("method", METHODS)
def test_a_quantised_checkpoint_names_the_missing_package(tmp_path, monkeypatch, method):
    spec = save(tmp_path, tiny("llama"))
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": method, "bits": 4}})
    )
    monkeypatch.setattr(quantize, "_installed", lambda module: False)
    with one_line_error(f"quantised by {method}", "pip install", METHODS[method]):
        load_pair(pair_of(spec), "cpu")


def test_a_checkpoint_of_an_unknown_kind_is_refused(tmp_path):
    spec = save(tmp_path, tiny("llama"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "sixbits"}}))
    with one_line_error(str(tmp_path), "sixbits"):
        load_pair(pair_of(spec), "cpu")


# Options and files


def test_weights_of_the_command_line():
    pair = with_weights("pocket", ["int8"])
    assert (pair.target.weights, pair.draft.weights, pair.name) == ("int8", "int8", "pocket-int8")
    pair = with_weights("pocket", ["draft=int4"])
    assert (pair.target.weights, pair.draft.weights, pair.name) == (None, "int4", "pocket-draft-int4")
    pair = with_weights("pocket", ["int8", "draft=int4"])
    assert (pair.target.weights, pair.draft.weights) == ("int8", "int4")


@pytest.mark.parametrize("text", ["int7", "third=int8", "draft=", "draft", "=int8x"])
def test_weights_that_do_not_exist(text):
    with one_line_error(f"--weights {text}", "int8, int4, fp8", "draft"):
        with_weights("pocket", [text])


def test_a_pairs_file_with_a_draft_of_the_target(tmp_path):
    path = tmp_path / "pair.yaml"
    path.write_text("description: d\ntarget: {model: a/b, dtype: float32}\ndraft: {of: target, weights: int4}\n")
    pair = read_pair(str(path))
    assert pair.draft == ModelSpec(model="a/b", dtype="float32", weights="int4") and pair.target.weights is None
    for draft in ("{of: target}", "{of: draft, weights: int4}"):
        path.write_text(f"description: d\ntarget: {{model: a/b}}\ndraft: {draft}\n")
        with one_line_error("of: target", str(path)):
            read_pair(str(path))
