"""Weights in fewer bits on `openvino`: the numbers by hand, the same logits in torch, real bytes, and what is refused.

Tests that compress need OpenVINO and NNCF, which are extras.
"""

import importlib.util
from dataclasses import replace

import pytest
import torch
from builders_engine import build
from cases import mostly_long
from gates import decode, lively
from oracle import greedy, tiny
from refusals import one_line_error
from test_models import save
from word_models import pair_of

from specbench.config import ModelSpec
from specbench.engine.models import cost, quantize
from specbench.engine.models.identity import is_quantized
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes import choose

pytest.importorskip("openvino")
NNCF = pytest.mark.skipif(importlib.util.find_spec("nncf") is None, reason="NNCF is an extra")
WIDE = {"hidden_size": 64, "intermediate_size": 96}
# Of a layer, by hand: [outputs, inputs] of q, k, v, o, gate, up, down.
SHAPES = 2 * [(32, 64), (16, 64), (16, 64), (64, 32), (96, 64), (96, 64), (64, 96)]


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    """A cache folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> ModelSpec:
    return save(tmp_path_factory.mktemp("llama"), tiny("llama", **WIDE))


def loaded(target: ModelSpec, weights: str | None, draft: str | None = None):
    """The target in a scheme, and as its draft the same in another, at the runtime."""
    specs = [target.model_copy(update={"weights": scheme}) for scheme in (weights, draft)]
    pair = load_pair(pair_of(*specs[: 1 + bool(draft)]), "cpu", runtime="openvino")
    return pair, choose.runtime("openvino", pair)


@NNCF
@pytest.mark.parametrize(("scheme", "levels"), [("int8", 128), ("int4", 8)])
def test_weights_are_the_rounded_ones(saved, scheme, levels):
    """Whole steps of a scale for each row (int8) or for 32 inputs (int4), at most half a step from the weight.

    The weight of the largest magnitude is the lowest number, -128 or -8. Scales are in float16; with that, and at the
    other end of the range, it may be one step and a little.
    """
    model = loaded(saved, scheme)[0].models["target"]
    plain, taken = tiny("llama", **WIDE).float(), 0
    for (name, module), rounded in zip(plain.named_modules(), model.modules(), strict=True):
        if not isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
            continue
        if name in ("lm_head", "model.embed_tokens"):
            torch.testing.assert_close(rounded.weight, module.weight, rtol=0, atol=0)
            continue
        taken += 1
        per_scale = 32 if scheme == "int4" else module.in_features
        rows, kept = (weight.detach().reshape(-1, per_scale) for weight in (module.weight, rounded.weight))
        steps = (rows.abs().amax(1, keepdim=True) / levels).half().float()
        numbers = kept / steps
        torch.testing.assert_close(numbers, numbers.round(), rtol=0, atol=1e-3)
        assert numbers.abs().max() == levels
        assert ((kept - rows).abs() <= 1.1 * steps).all()
        assert ((kept - rows).abs() <= 0.57 * steps).float().mean() > 0.95
    assert taken == len(SHAPES) and not is_quantized(model)


@NNCF
@mostly_long(
    "scheme, method",
    [(scheme, method) for scheme in ("int8", "int4") for method in ("sps", "rsd", "pld")],
    (("int8", "sps"), ("int4", "rsd")),
)
def test_texts_are_those_of_the_quantised_target(saved, scheme, method):
    """Vanilla's, of an oracle that reads the rounded weights in whole forwards, and every method's."""
    pair, runtime = loaded(saved, scheme, "int4")
    target = pair.models["target"]
    prompt, text = lively(target, 8, 40)
    assert text == greedy(target, prompt, 40) != greedy(tiny("llama", **WIDE).float(), prompt, 40)
    on = replace(pair, runtime=runtime)
    assert decode(build(on, "vanilla"), prompt, 40)[0] == text
    result, rounds = decode(build(on, method), prompt, 40)
    assert result == text
    if method != "pld":
        assert 0 < sum(r.accepted for r in rounds) < sum(r.drafted for r in rounds)


@NNCF
@pytest.mark.parametrize(("scheme", "bits", "inputs"), [("int8", 8, None), ("int4", 4, 32)])
def test_bytes_are_those_that_weights_take(saved, tmp_path, monkeypatch, scheme, bits, inputs):
    """A scale takes two bytes. The export on the disk, which has no more than its weights, says the same."""
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    whole, small = (cost.facts(loaded(saved, weights)[0].models["target"]) for weights in (None, scheme))
    matrices = sum(out * wide for out, wide in SHAPES)
    scales = sum(out * wide // inputs if inputs else out for out, wide in SHAPES)
    assert whole["weight_bytes"] - small["weight_bytes"] == matrices * 4 - matrices * bits // 8 - 2 * scales
    assert {**whole, "weight_bytes": 0} == {**small, "weight_bytes": 0}
    on_disk = sorted(path.stat().st_size for path in tmp_path.glob("openvino/*/model.bin"))
    assert on_disk[1] - on_disk[0] == pytest.approx(whole["weight_bytes"] - small["weight_bytes"], rel=0.02)


@NNCF
def test_the_manifest_tells_the_scheme(saved):
    described = [loaded(saved, scheme)[0].describe()["target"] for scheme in (None, "int8", "int4")]
    assert "weights" not in described[0]
    assert described[1]["weights"].startswith("int8, ") and "nncf" in described[1]["weights"]
    assert described[2]["weights"].startswith("int4 in groups of 32, ")
    assert len({facts["weights_hash"] for facts in described}) == 3


@NNCF
def test_an_export_in_the_cache_is_read_again(saved, monkeypatch):
    first = loaded(saved, "int8")[0].describe()["target"]
    monkeypatch.setattr("specbench_extras.openvino.export.traced", None)
    assert loaded(saved, "int8")[0].describe()["target"] == first


@NNCF
def test_a_damaged_export_is_made_anew(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    first = loaded(saved, "int8")[0].describe()["target"]
    (path,) = tmp_path.glob("openvino/*int8*/model.bin")
    whole = path.read_bytes()
    path.write_bytes(bytes(255 - byte for byte in whole))
    assert loaded(saved, "int8")[0].describe()["target"] == first
    assert path.read_bytes() == whole


@NNCF
def test_weights_that_are_not_finite_afterwards(tmp_path):
    model = tiny("llama", **WIDE)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] = float("inf")
    with one_line_error("model.layers.1.mlp.up_proj", "not finite", "int8"):
        loaded(save(tmp_path, model), "int8")


@NNCF
def test_layers_that_do_not_divide(saved):
    with one_line_error("groups of 128", "use int8"):
        loaded(saved.model_copy(update={"group": 128}), "int4")


def test_fp8_is_none_of_its_schemes(saved):
    with one_line_error("openvino", "int8 and int4", "fp8"):
        loaded(saved, "fp8")


def test_without_nncf_a_line_says_what_to_install(saved, monkeypatch):
    monkeypatch.setattr(quantize, "_installed", lambda module: False)
    with one_line_error("nncf", "specbench-harness[quantized]"):
        loaded(saved, "int8")
