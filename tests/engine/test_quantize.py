"""Weights in fewer bits: the numbers by hand, real bytes, what the manifest tells, and what is refused.

Tests that quantise need torchao, which is an extra.
"""

import importlib.util
import json

import pytest
import torch
from gates import decode
from oracle import greedy, tiny
from refusals import one_line_error
from test_models import PROMPT, save
from word_models import pair_of

from specbench.config import ModelSpec, PairSpec, validated, with_weights
from specbench.config import load_pair as read_pair
from specbench.engine.models import cost, quantize
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes.openvino import OpenVINO
from specbench.engine.runtimes.static import STATIC
from specbench.engine.runtimes.types import Unsupported
from specbench.engine.session import Session
from specbench.methods.chains.vanilla import Vanilla

AO = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is an extra")
WIDE = {"hidden_size": 64, "intermediate_size": 96}
LEVELS = {"int8": 127.5, "int4": 7.5}  # steps from 0 to the largest value of a scale's weights


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> ModelSpec:
    return save(tmp_path_factory.mktemp("llama"), tiny("llama", **WIDE))


def as_stored(model: torch.nn.Module, scheme: str) -> torch.nn.Module:
    """The model in float, with the numbers times their scales that a quantised one holds in its linear layers.

    Each is at most a step from the weight that it stands for: half by rounding, the rest at the ends of the range.
    Steps are symmetric, with a scale for each row (int8, fp8) or for 32 inputs (int4).
    """
    plain = tiny("llama", **WIDE).float()
    for (name, module), quantised in zip(plain.named_modules(), model.modules(), strict=True):
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        weight, kept = module.weight.detach(), quantised.weight
        rows = weight.reshape(-1, 32) if scheme == "int4" else weight
        numbers, scale = kept.qdata.float().reshape(rows.shape), kept.scale.float().reshape(-1, 1)
        if scheme == "fp8":
            assert ((numbers * scale - rows).abs() <= rows.abs() / 16 + scale * 2**-9).all()
        else:
            torch.testing.assert_close(scale, rows.abs().amax(1, keepdim=True) / LEVELS[scheme])
            assert ((numbers * scale - rows).abs() <= 1.001 * scale).all()
            assert ((numbers * scale - rows).abs() <= 0.501 * scale).float().mean() > 0.95
        with torch.no_grad():
            module.weight.copy_((numbers * scale).reshape(weight.shape))
    return plain


@AO
@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("runtime", ["eager", "static"])
def test_quantised_weights_are_the_rounded_ones(saved, scheme, runtime):
    pair = load_pair(pair_of(saved.model_copy(update={"weights": scheme}), saved), "cpu")
    model = pair.models["target"]
    session = Session(model, "target", runtime=STATIC) if runtime == "static" else Session(model, "target")
    expected = as_stored(model, scheme)
    with torch.no_grad():
        logits = expected(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(session.forward(PROMPT).logits, logits, rtol=0, atol=2e-3)
    assert decode(Vanilla(session), PROMPT, 8)[0] == greedy(expected, PROMPT, 8)
    plain = tiny("llama", **WIDE).float()
    with torch.no_grad():
        torch.testing.assert_close(
            pair.session("draft").forward(PROMPT).logits, plain(torch.tensor([PROMPT])).logits[0]
        )
    assert quantize.is_quantized(model) and not quantize.is_quantized(pair.models["draft"])


@AO
def test_bytes_are_those_that_weights_take(saved):
    """Rows of 64 or 96 inputs: int8 has a byte for each weight, and for each row a float32 and the byte of a zero."""
    whole, small = (
        cost.facts(load_pair(pair_of(saved.model_copy(update={"weights": scheme})), "cpu").models["target"])
        for scheme in (None, "int8")
    )
    shapes = 2 * [(32, 64), (16, 64), (16, 64), (64, 32), (96, 64), (96, 64), (64, 96)]
    matrices, rows = sum(out * inputs for out, inputs in shapes), sum(out for out, _ in shapes)
    assert whole["weight_bytes"] - small["weight_bytes"] == 3 * matrices - 5 * rows
    assert whole["matrix_weights"] == small["matrix_weights"] == matrices
    assert {**whole, "weight_bytes": 0} == {**small, "weight_bytes": 0}


@AO
def test_the_manifest_tells_the_scheme(saved):
    described = [
        load_pair(pair_of(saved.model_copy(update=changes)), "cpu").describe()["target"]
        for changes in ({}, {"weights": "int8"}, {"weights": "int4"}, {"weights": "int4", "group": 32})
    ]
    assert "weights" not in described[0]
    assert described[1]["weights"].startswith("int8, ") and "torchao" in described[1]["weights"]
    assert described[2]["weights"].startswith("int4 in groups of 32, ")
    hashes = [facts["weights_hash"] for facts in described]
    assert len(set(hashes)) == 3 and hashes[2] == hashes[3]


@AO
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


@AO
@pytest.mark.parametrize(
    ("changes", "words"),
    [({"weights": "int4", "group": 48}, "groups of 48"), ({"weights": "int4", "group": 128}, "groups of 128")],
)
def test_layers_that_do_not_divide(saved, changes, words):
    with one_line_error(words, "use int8"):
        load_pair(pair_of(saved.model_copy(update=changes)), "cpu")


@AO
def test_weights_that_are_not_finite_afterwards(tmp_path):
    model = tiny("llama", **WIDE)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] = float("inf")
    spec = save(tmp_path, model).model_copy(update={"weights": "int8"})
    with one_line_error("model.layers.1.mlp.up_proj", "not finite"):
        load_pair(pair_of(spec), "cpu")


@AO
def test_openvino_takes_float_weights_only(saved):
    model = load_pair(pair_of(saved.model_copy(update={"weights": "int8"})), "cpu").models["target"]
    with pytest.raises(Unsupported, match="weights in float"):
        OpenVINO(torch.device("cpu")).runner(model)


# Without torchao, or before it is asked


def test_without_torchao_a_line_says_what_to_install(saved, monkeypatch):
    monkeypatch.setattr(quantize, "_installed", lambda module: False)
    with one_line_error("torchao", "specbench-harness[quantized]"):
        load_pair(pair_of(saved.model_copy(update={"weights": "int8"})), "cpu")


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
