"""Released heads of EAGLE, EAGLE-2 and HASS, and adapters of Kangaroo, written here in the authors' layout."""

import json
import math

import naive_feature_head
import naive_kangaroo
import oracle
import pytest
import torch
from gates import decode
from refusals import one_line_error
from safetensors.torch import save_file
from screens import call

from specbench import config
from specbench.engine.models.heads import read_head
from specbench.engine.session import LAST, Unwatched
from specbench.methods.heads import eagle
from specbench.methods.layers import kangaroo
from specbench_extras import importer
from specbench_extras.eagle import released as released_eagle
from specbench_extras.kangaroo import released as released_adapter

TEXT = [5, 17, 900, 33, 210, 8]
SIZES = {"hidden_size": 192, "intermediate_size": 64, "num_attention_heads": 6, "num_key_value_heads": 3}
VICUNA = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000}
KINDS = ("eagle", "hass", "kangaroo")
IMPORTER = {"eagle": released_eagle.EagleImporter(), "kangaroo": released_adapter.KangarooImporter()}


def import_head(kind, folder, out):
    if kind == "kangaroo":
        return released_adapter.import_head(folder, "pocket", out)
    return released_eagle.import_head(folder, "pocket", out, kind)


def checkpoint(folder, kind, safe=False, change=None, **changes):
    """A checkpoint for the bundled target, in half precision."""
    rng = torch.Generator().manual_seed(5)

    def noise(*shape):
        return (torch.randn(*shape, generator=rng) * 0.05).half()

    tensors = {f"layers.0.self_attn.{name}_proj.weight": noise(192 if name in "qo" else 96, 192) for name in "qkvo"}
    if kind == "kangaroo":
        tensors |= {"layers.0.input_layernorm.weight": 1 + noise(192), "norm.weight": 1 + noise(192)}
    else:
        tensors |= {"fc.weight": noise(192, 384), "fc.bias": noise(192)}
        tensors |= {f"layers.0.mlp.{name}_proj.weight": noise(64, 192) for name in ("gate", "up")}
        tensors |= {"layers.0.mlp.down_proj.weight": noise(192, 64)}
        tensors |= {"layers.0.post_attention_layernorm.weight": 1 + noise(192)}
    facts = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
    facts |= {"vocab_size": 2048, "rms_norm_eps": 1e-06, "torch_dtype": "float16", "pad_token_id": 0}
    facts |= {"exit_layer": 3} if kind == "kangaroo" else {}
    if change:
        change(tensors)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**facts, **changes}))
    if safe:
        save_file(tensors, folder / "model.safetensors")
    else:
        torch.save(tensors, folder / "pytorch_model.bin")
    return folder, tensors


@pytest.fixture
def bundled(pocket, monkeypatch):
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)
    return pocket


@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("kind", ("eagle", "hass"))
def test_a_released_head_drafts_what_its_own_weights_say(tmp_path, bundled, kind, bias):
    def other(tensors):
        own = bundled.models["target"].get_input_embeddings().weight.detach()
        tensors["embed_tokens.weight"] = own.bfloat16().half().clone()
        if not bias:
            del tensors["fc.bias"]

    folder, tensors = checkpoint(tmp_path / "head", kind, not bias, other, **({} if bias else {"bias": False}))
    file = import_head(kind, folder, tmp_path / "h.safetensors")
    read_again = read_head(file, kind, bundled, None)
    assert read_again.trained["released"] == "head" and read_again.trained["fuse"] == "fc"
    values = {**config.load_method(kind).values, "head": str(file)}
    built = eagle.build(eagle.Settings(**values), bundled, Unwatched())
    target = bundled.models["target"]
    assert built.inputs() == read_again.hashes() and built.lossless
    assert decode(built, TEXT, 8)[0] == oracle.greedy(target, TEXT, 8)
    seen = bundled.session("target").forward(TEXT[:-1], hidden=LAST).hidden
    head = built.drafter.head
    built.drafter.session.truncate(0)
    logits = built.drafter.session.forward(TEXT[1:], features=head.fuse(seen)).logits
    weights = {name: tensor.double() for name, tensor in tensors.items()}
    table = target.get_input_embeddings().weight.detach().double()
    states, _ = naive_feature_head.states(weights, "fc", table, TEXT[1:], seen.double(), 6, 2)
    expected = torch.stack(states) @ target.get_output_embeddings().weight.detach().double().T
    assert torch.allclose(logits.double(), expected, atol=1e-4) and expected.std() > 0.1


def test_a_released_adapter_drafts_what_its_own_weights_say(tmp_path, bundled):
    folder, tensors = checkpoint(tmp_path / "adapter", "kangaroo", rope_theta=500.0)
    file = import_head("kangaroo", folder, tmp_path / "h.safetensors")
    head = read_head(file, "kangaroo", bundled, kangaroo.SHAPES)
    assert head.trained["released"] == "adapter" and head.trained["exit"] == 3
    settings = kangaroo.Settings(**{**config.load_method("kangaroo").values, "head": str(file), "threshold": 0.02})
    built = kangaroo.build(settings, bundled, Unwatched())
    target = bundled.models["target"]
    tokens, rounds = decode(built, TEXT, 8)
    assert tokens == oracle.greedy(target, TEXT, 8) and built.inputs() == head.hashes()
    weights = {name.removeprefix("layers.0."): tensor.double() for name, tensor in tensors.items()}
    expected = naive_kangaroo.rounds(weights, target, 3, [*TEXT, *rounds[0].tokens], 1, 6, 0.02, (6, 2))
    assert rounds[1].verdict.drafted == expected[0].drafted


@pytest.mark.parametrize(("kind", "millions"), [("eagle", 236), ("kangaroo", 67)])
def test_the_shapes_are_those_of_the_released_heads_for_vicuna_7b(kind, millions):
    """The papers: EAGLE's head has 0.24 billion numbers, Kangaroo's adapter 67 million."""
    facts = IMPORTER[kind].config(**VICUNA)
    assert round(sum(map(math.prod, IMPORTER[kind].shapes(facts, {}).values())) / 1e6) == millions


@pytest.mark.parametrize(("layers", "expected"), [(32, 2), (40, 3), (12, None)])
def test_the_exit_of_a_released_adapter(layers, expected):
    facts = released_adapter.Config(**VICUNA)
    if expected:
        assert facts.exit(layers) == expected
    else:
        with pytest.raises(ValueError, match="how many of 12 layers come before it; write exit_layer into it"):
            facts.exit(layers)
    assert released_adapter.Config(**VICUNA, exit_layer=5).exit(layers) == 5


def without(name):
    return lambda tensors: tensors.pop(name)


def added(name):
    return lambda tensors: tensors.update({name: torch.zeros(3)})


def cut(name):
    return lambda tensors: tensors.update({name: tensors[name][:100].clone()})


@pytest.mark.parametrize(
    ("kind", "change", "facts", "words"),
    [
        ("eagle", without("fc.weight"), {}, "it lacks fc.weight; name the folder of a head"),
        ("eagle", without("fc.bias"), {"bias": True}, "it lacks fc.bias"),
        ("eagle", None, {"bias": False}, "it has fc.bias too"),
        ("eagle", added("layers.0.input_layernorm.weight"), {}, "it has layers.0.input_layernorm.weight too"),
        ("eagle", None, {"num_hidden_layers": 2}, "it has 2 layers, and EAGLE's heads have 1"),
        ("eagle", None, {"qkv_bias": True}, "its attention has biases"),
        ("eagle", None, {"hidden_size": 4096, "num_attention_heads": 32}, "and its config.json says 4096 x 8192"),
        ("eagle", None, {"hidden_act": "swish?"}, "swish?"),
        ("hass", cut("layers.0.mlp.down_proj.weight"), {}, "down_proj.weight is 100 x 64, and its config.json"),
        ("hass", lambda t: t["fc.weight"].fill_(torch.nan), {}, "no numbers"),
        ("hass", lambda t: t.update({"embed_tokens.weight": torch.zeros(2048, 192)}), {}, "embeddings that are not"),
        ("kangaroo", without("norm.weight"), {}, "it lacks norm.weight; name the folder of a head"),
        ("kangaroo", added("layers.0.mlp.up_proj.weight"), {}, "it has layers.0.mlp.up_proj.weight too"),
        ("kangaroo", None, {"num_hidden_layers": 2}, "it has 2 layers, and Kangaroo's adapter has 1"),
        ("kangaroo", None, {"exit_layer": None}, "write exit_layer into it"),
        ("kangaroo", None, {"exit_layer": 12}, "exit_layer is 12, but the target has 12 layers"),
    ],
)
def test_checkpoints_that_are_no_head(tmp_path, bundled, kind, change, facts, words):
    folder, _ = checkpoint(tmp_path / "head", kind, True, change, **facts)
    with one_line_error(words):
        import_head(kind, folder, tmp_path / "h.safetensors")
    assert not (tmp_path / "h.safetensors").exists()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_imports_heads(tmp_path, kind):
    folder, _ = checkpoint(tmp_path / "head", kind)
    out = tmp_path / "h.safetensors"
    outcome = call("import", f"{kind}-head", str(folder), "--pair", "pocket", "--out", str(out))
    assert outcome.exit_code == 0 and f"{kind}.head={out}" in outcome.output and out.is_file()
