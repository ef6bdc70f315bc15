"""Released heads of EAGLE-3, written here in the authors' layout."""

import types

import naive_eagle as naive
import oracle
import pytest
import torch
from gates import decode, pair
from refusals import one_line_error
from released_eagle3 import DRAFTED, SIZES, checkpoint
from typer.testing import CliRunner

from specbench import config
from specbench.cli import app
from specbench.engine.models.eagle_head import layers_read
from specbench.engine.models.heads import read_head
from specbench.engine.session import Session
from specbench.methods.heads import eagle3
from specbench.methods.heads.eagle3 import eagle_head
from specbench_extras import importer
from specbench_extras.eagle import released_eagle3 as released

SHIPPED = config.load_method("eagle3").values


@pytest.mark.parametrize("kind", ("pickled", "safe"))
def test_a_released_head_drafts_what_its_own_weights_say(tmp_path, pocket, monkeypatch, kind):
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)
    own = pocket.models["target"].get_input_embeddings().weight.detach().bfloat16().half()

    def brings(tensors):
        if kind == "safe":
            tensors["embed_tokens.weight"] = own.clone()

    folder, tensors = checkpoint(tmp_path / "head", kind, brings, rope_theta=500.0)
    file = released.import_head(folder, "pocket", tmp_path / "h.safetensors")
    head = read_head(file, "eagle3", pocket, eagle3.SHAPES)
    assert head.trained["released"] == "head" and head.trained["draft_vocabulary"] == 6
    model = eagle_head(head, pocket.models["target"], pocket.vocabulary)
    assert model.ids.tolist() == DRAFTED
    text = [5, 17, 900, 33, 210, 8]
    target = pocket.session("target")
    seen = target.forward(text[:-1], hidden=(2, 6, 9)).hidden
    assert layers_read(target.model) == (2, 6, 9)
    logits = Session(model, "draft", vocabulary=6).forward(text[1:], features=model.fuse(seen)).logits
    weights = {name: tensor.double() for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    table = target.model.get_input_embeddings().weight.detach().double()
    states = naive.states(weights, table, text[1:], seen.double(), heads=6, groups=2, eps=1e-5, theta=500.0)
    expected = torch.stack([naive.predicted(weights, state, 1e-5) for state in states])
    assert torch.allclose(logits.double(), expected, atol=1e-4) and expected.std() > 0.1
    method = eagle3.build(eagle3.Settings(**{**SHIPPED, "head": str(file)}), pocket, None)
    assert method.lossless and method.reach == 60 and method.inputs() == head.hashes()
    assert decode(method, text, 12)[0] == oracle.greedy(pocket.models["target"], text, 12)


def test_a_stretched_rotation_was_made_for_the_positions_that_the_head_tells():
    facts = {**SIZES, "vocab_size": 2048, "draft_vocab_size": 6, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    rope = released.Config(**facts, max_position_embeddings=4096).in_head_file()["rope_parameters"]
    assert rope["original_max_position_embeddings"] == 4096 and rope["rope_type"] == "yarn"
    facts["rope_scaling"] = {**facts["rope_scaling"], "original_max_position_embeddings": 512}
    assert released.Config(**facts, max_position_embeddings=4096).in_head_file()["rope_parameters"] == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 512,
    }


def without(name):
    return lambda tensors: tensors.pop(name)


def changed(name, value):
    return lambda tensors: tensors.update({name: value(tensors[name])})


def added(name):
    return lambda tensors: tensors.update({name: torch.zeros(3)})


@pytest.mark.parametrize(
    ("change", "facts", "words"),
    [
        (without("midlayer.hidden_norm.weight"), {}, "it lacks midlayer.hidden_norm.weight"),
        (without("d2t"), {}, "it lacks d2t"),
        (None, {"attention_bias": True}, "its attention has biases"),
        (added("midlayer.self_attn.q_proj.bias"), {}, "it has midlayer.self_attn.q_proj.bias too"),
        (
            changed("fc.weight", lambda x: x[:, :384].contiguous()),
            {},
            "fc.weight is 192 x 384, and its",
        ),
        (changed("d2t", lambda x: x.flip(0)), {}, "d2t and t2d do not name the same 6 of 2048 tokens"),
        (changed("d2t", lambda x: x + 1), {}, "d2t and t2d do not name"),
        (changed("t2d", lambda x: ~x), {}, "d2t and t2d do not name"),
        (changed("norm.weight", lambda x: x * torch.nan), {}, "no numbers"),
        (
            lambda tensors: tensors.update({"embed_tokens.weight": torch.zeros(2048, 192)}),
            {},
            "embeddings that are not",
        ),
        (None, {"intermediate_size": 65}, "gate_proj.weight is 64 x 192, and its config.json says 65 x 192"),
        (None, {"draft_vocab_size": 7}, "lm_head.weight is 6 x 192"),
        (None, {"draft_vocab_size": None}, "draft_vocab_size"),
        (None, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "positions are dynamic; only these"),
        (None, {"hidden_act": "swish?"}, "swish?"),
        (None, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "does not say for how many positions"),
        (
            None,
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}},
            "reads the states of layers [1, 5, 8]",
        ),
    ],
)
def test_checkpoints_that_are_no_head(tmp_path, pocket, monkeypatch, change, facts, words):
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)
    folder, _ = checkpoint(tmp_path / "head", "safe", change, **facts)
    with one_line_error(words):
        released.import_head(folder, "pocket", tmp_path / "h.safetensors")
    assert not (tmp_path / "h.safetensors").exists()


def test_folders_that_hold_no_checkpoint(tmp_path, pocket, monkeypatch):
    class Code:
        def __reduce__(self):
            return print, ("run",)

    other = types.SimpleNamespace(models={"target": pair("llama")[0]}, name="tiny", vocabulary=96)
    monkeypatch.setattr(importer, "load_models", lambda *_: other)
    folder, _ = checkpoint(tmp_path / "head")
    for word, spoil in (
        ("reads 192 values, but the target of tiny has 32", lambda: None),
        ("is damaged", lambda: torch.save({"fc.weight": Code()}, folder / "pytorch_model.bin")),
        ("neither model.safetensors nor", (folder / "pytorch_model.bin").unlink),
    ):
        spoil()
        with pytest.raises(config.UserError, match=word):
            released.import_head(folder, "pocket", tmp_path / "h")


def test_the_command_line_imports_a_head(tmp_path):
    folder, _ = checkpoint(tmp_path / "head")
    out = tmp_path / "h.safetensors"
    outcome = CliRunner().invoke(app, ["import", "eagle3-head", str(folder), "--pair", "pocket", "--out", str(out)])
    assert outcome.exit_code == 0 and f"eagle3.head={out}" in outcome.output and out.is_file()
    again = CliRunner().invoke(app, ["import", "eagle3-head", str(folder), "--pair", "pocket", "--out", str(out)])
    assert again.exit_code != 0 and "exists" in again.output
    bare = CliRunner().invoke(app, ["import", "eagle3-head", str(folder)])
    assert bare.exit_code != 0 and "eagle3-head takes one folder, --pair and --out" in bare.output
