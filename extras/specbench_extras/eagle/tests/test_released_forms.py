"""Released heads of EAGLE-3 as people have them: what engines and trainers write, and what no head here can read."""

import json

import naive_eagle as naive
import oracle
import pytest
import torch
from gates import decode
from refusals import one_line_error
from released_eagle3 import SIZES, checkpoint
from safetensors.torch import save_file

from specbench import config
from specbench.engine.models.heads import read_head
from specbench.engine.session import Session
from specbench.methods.heads import eagle3
from specbench.methods.heads.eagle3 import SHAPES, eagle_head
from specbench_extras import importer
from specbench_extras.eagle import released as released_eagle
from specbench_extras.eagle import released_eagle3 as released

TEXT = [5, 17, 900, 33, 210, 8]
LAYER = {
    **SIZES,
    **{"model_type": "llama", "num_hidden_layers": 1, "vocab_size": 2048, "rms_norm_eps": 1e-5, "head_dim": 32},
}
# As `Eagle3SpeculatorConfig.save_pretrained` of vllm-project/speculators writes it.
SPECULATORS = {
    "architectures": ["Eagle3DraftModel"],
    "draft_vocab_size": 6,
    "eagle_aux_hidden_state_layer_ids": [2, 6, 9],
    "embed_requires_grad": False,
    "fc_norm": False,
    "norm_before_fc": False,
    "norm_before_residual": False,
    "norm_output": False,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "meta-llama/Llama-3.1-8B-Instruct"},
    },
    "speculators_model_type": "eagle3",
    "speculators_version": "0.5.0",
    "target_hidden_size": None,
    "transformer_layer_config": LAYER,
    "transformers_version": "4.57.1",
}
# As configs/qwen3-8b-eagle3.json of sgl-project/SpecForge, with other sizes.
SPECFORGE = {
    "architectures": ["LlamaForCausalLMEagle3"],
    **{"attention_bias": False, "attention_dropout": 0.0, "head_dim": 32, "hidden_act": "silu"},
    **{"max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "llama", "rope_scaling": None},
    **{"rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False},
}


@pytest.fixture
def bundled(pocket, monkeypatch):
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)
    return pocket


def imported(folder, pair):
    file = folder.parent / f"{folder.name}.safetensors"
    released.import_head(folder, "pocket", file)
    return file, read_head(file, "eagle3", pair, None)


def same(one, other) -> bool:
    return one.tensors.keys() == other.tensors.keys() and all(
        torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items()
    )


def rewritten(folder, facts):
    (folder / "config.json").write_text(json.dumps(facts))


def test_a_head_of_speculators_is_that_of_its_authors(tmp_path, bundled):
    """Its layer is `layers.0`, its sizes are in `transformer_layer_config`, and it brings the target's embedding."""
    own, tensors = checkpoint(tmp_path / "own")
    folder, _ = checkpoint(tmp_path / "speculators", "safe")
    embedding = bundled.models["target"].get_input_embeddings().weight.detach().clone()
    save_file(
        {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
        | {"embed_tokens.weight": embedding},
        folder / "model.safetensors",
    )
    rewritten(folder, SPECULATORS)
    (_, expected), (_, head) = imported(own, bundled), imported(folder, bundled)
    assert same(head, expected) and head.trained["config"] == expected.trained["config"]


def test_a_config_of_speculators_leaves_out_defaults(tmp_path, bundled):
    """Of transformers' own configuration: 32 heads and 4,096 numbers for a Llama, which this layer does not have."""
    folder, _ = checkpoint(tmp_path / "head", "safe")
    few = {"model_type": "llama", "vocab_size": 2048, "num_hidden_layers": 1}
    rewritten(folder, {**SPECULATORS, "transformer_layer_config": few})
    with one_line_error("its config.json says 4096 x 8192"):
        imported(folder, bundled)


def test_a_head_of_specforge(tmp_path, bundled):
    folder, _ = checkpoint(tmp_path / "head", "safe", **SPECFORGE)
    head = imported(folder, bundled)[1]
    assert head.trained["config"]["rope_parameters"] == {"rope_type": "default", "rope_theta": 1000000}


def test_what_the_official_loader_leaves_unread(tmp_path, bundled):
    """It has one layer whatever config.json says (Model in eagle/model/cnets.py), and t2d is only for training."""
    own, _ = checkpoint(tmp_path / "own")
    folder, _ = checkpoint(tmp_path / "told", change=lambda tensors: tensors.pop("t2d"), num_hidden_layers=40)
    assert same(imported(folder, bundled)[1], imported(own, bundled)[1])


@pytest.mark.parametrize("brings", (False, True))
def test_a_head_of_the_whole_vocabulary_maps_no_tokens(tmp_path, bundled, brings):
    """EaModel in eagle/model/ea_model.py drops d2t and t2d where the vocabularies are equal."""
    output = torch.randn(2048, 192) * 0.05

    def whole(tensors):
        tensors["lm_head.weight"] = output
        del tensors["t2d"], tensors["d2t"]
        if brings:
            tensors["d2t"] = torch.arange(2048)

    folder, _ = checkpoint(tmp_path / "head", "safe", whole, draft_vocab_size=2048)
    head = imported(folder, bundled)[1]
    assert not head.tensors["d2t"].any() and torch.equal(head.tensors["lm_head.weight"], output[: bundled.vocabulary])


def test_a_head_that_is_narrower_than_its_target_has_its_own_embedding(tmp_path, bundled):
    """As the official head for Llama 3.3 70B (`target_hidden_size`). By a second implementation."""
    embedding = (torch.randn(2048, 96, generator=torch.Generator().manual_seed(9)) * 0.3).half()

    def narrow(tensors):
        for name, tensor in tensors.items():
            if name in ("d2t", "t2d"):
                continue
            rows = tensor if name == "lm_head.weight" or "gate" in name or "up" in name else tensor[:96]
            if "k_proj" in name or "v_proj" in name:
                rows = tensor[:48]
            columns = {"fc.weight": 576, "midlayer.mlp.down_proj.weight": 64}.get(name)
            width = 192 if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")) else 96
            tensors[name] = rows.clone() if rows.dim() == 1 else rows[:, : columns or width].clone()
        tensors["embed_tokens.weight"] = embedding

    sizes = {"hidden_size": 96, "target_hidden_size": 192}
    folder, tensors = checkpoint(tmp_path / "head", "safe", narrow, **sizes)
    file, head = imported(folder, bundled)
    target = bundled.models["target"]
    model = eagle_head(head, target, bundled.vocabulary)
    seen = bundled.session("target").forward(TEXT[:-1], hidden=(2, 6, 9)).hidden
    logits = Session(model, "draft", vocabulary=6).forward(TEXT[1:], features=model.fuse(seen)).logits
    weights = {name: tensor.double() for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    states = naive.states(weights, embedding.double(), TEXT[1:], seen.double(), heads=6, groups=2, eps=1e-5)
    expected = torch.stack([naive.predicted(weights, state, 1e-5) for state in states])
    assert torch.allclose(logits.double(), expected, atol=1e-4) and expected.std() > 0.05
    settings = eagle3.Settings(**{**config.load_method("eagle3").values, "head": str(file)})
    assert decode(eagle3.build(settings, bundled, None), TEXT, 12)[0] == oracle.greedy(target, TEXT, 12)
    with one_line_error("embed_tokens.weight"):  # it cannot go on learning
        read_head(file, "eagle3", bundled, SHAPES)
    (folder / "model.safetensors").unlink()
    save_file({name: tensor for name, tensor in tensors.items() if "embed" not in name}, folder / "model.safetensors")
    with one_line_error("it lacks embed_tokens.weight"):
        released.import_head(folder, "pocket", tmp_path / "other.safetensors")


def test_positions_that_are_stretched_linearly_have_the_official_base():
    """LlamaAttention._init_rope of the official code passes `rope_theta` on only where nothing is stretched."""
    facts = {**SIZES, "vocab_size": 2048, "draft_vocab_size": 6, "rope_theta": 500000.0}
    official, later = {"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}
    for form in (released.Config, released_eagle.Config):
        for scaling, base in ((official, 10000.0), (later, 500000.0), (None, 500000.0)):
            assert form(**facts, rope_scaling=scaling).in_head_file()["rope_parameters"]["rope_theta"] == base


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({**SPECULATORS, "speculators_model_type": "peagle"}, "P-EAGLE, which drafts all tokens in one forward"),
        ({**SPECFORGE, "architectures": ["PEagleDraftModel"]}, "P-EAGLE, which drafts all tokens in one forward"),
        ({**SPECULATORS, "speculators_model_type": "mtp"}, "multi-token prediction"),
        ({"architectures": ["DeepSeekMTPModel"]}, "multi-token prediction"),
        ({**SPECULATORS, "speculators_model_type": "dflash"}, "its head is of dflash, not of eagle3"),
        ({**SPECULATORS, "norm_before_residual": True}, "norm_before_residual is True"),
        ({**SPECULATORS, "norm_output": True}, "norm_output is True"),
        ({**SPECULATORS, "transformer_layer_config": {"model_type": "llama", "hidden_size": "wide"}}, "says no layer"),
        ({**SPECULATORS, "transformer_layer_config": {"model_type": "no such"}}, "says no layer ('no such')"),
        ({**SPECULATORS, "transformer_layer_config": None}, "says no layer"),
        ({**SPECFORGE, "fc_norm": True}, "fc_norm is True"),
        ({**SPECFORGE, "norm_output": False}, "norm_output is False"),
        ({**SPECULATORS, "eagle_aux_hidden_state_layer_ids": [1, 5, 8]}, "reads the states of layers [1, 5, 8]"),
    ],
)
def test_heads_of_engines_that_cannot_be_read(tmp_path, bundled, facts, words):
    def renamed(tensors):
        if "speculators_model_type" in facts:
            for name in [name for name in tensors if name.startswith("midlayer.")]:
                tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)

    folder, _ = checkpoint(tmp_path / "head", "safe", renamed)
    rewritten(folder, facts)
    with one_line_error(words):
        imported(folder, bundled)
