"""A model's files must hold its weights, all of them and no others; transformers' own exceptions stay."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from oracle import tiny
from refusals import one_line_error
from safetensors.torch import load_file, save_file
from word_models import pair_of, tokenizer

from specbench.config import ModelSpec
from specbench.engine.models.pair import load_pair

UP, Q_BIAS = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of a tiny model: `tied` or `untied`, as its settings and its files say."""
    made = {}
    for name, tied in (("tied", True), ("untied", False)):
        made[name] = tmp_path_factory.mktemp("models") / name
        tiny("llama", tie_word_embeddings=tied).save_pretrained(made[name])
        tokenizer().save_pretrained(made[name])
    return made


def spec(folder: Path, change, target: Path, **settings) -> ModelSpec:
    """A copy of a model with its tensors changed by `change`, in place, and with other settings."""
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    config = target / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))
    return ModelSpec(model=str(target))


def added(name, like=EMBEDDING):
    return lambda tensors: tensors.update({name: torch.randn_like(tensors[like])})


def nothing(tensors):
    pass


REFUSED = {
    "no output layer": ("untied", lambda tensors: tensors.pop(OUTPUT), {}, ("lack lm_head.weight", "tie_word_emb")),
    "an output layer that is not tied": ("tied", nothing, {"tie_word_embeddings": False}, ("lack lm_head.weight",)),
    "a layer's weight": ("tied", lambda tensors: tensors.pop(UP), {}, (f"lack {UP}, which would be random",)),
    "no embedding": ("tied", lambda tensors: tensors.pop(EMBEDDING), {}, (EMBEDDING,)),
    "more layers than files": ("tied", nothing, {"num_hidden_layers": 3}, ("lack model.layers.2.", "more")),
    "fewer layers than files": ("tied", nothing, {"num_hidden_layers": 1}, ("hold model.layers.1.", "and 5 more")),
    "biases": ("tied", added(Q_BIAS, "model.norm.weight"), {}, (f"hold {Q_BIAS}", "LlamaForCausalLM")),
    "an output layer next to a tie": ("tied", added(OUTPUT), {}, ("ties lm_head.weight", "other values")),
}


@pytest.mark.parametrize(("folder", "change", "settings", "words"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_weights_that_are_missing_or_left_over_are_refused(folders, tmp_path, folder, change, settings, words, role):
    changed, whole = (
        spec(folders[folder], change, tmp_path / "changed", **settings),
        ModelSpec(model=str(folders["tied"])),
    )
    pair = pair_of(changed) if role == "target" else pair_of(whole, changed)
    with one_line_error(str(tmp_path / "changed"), *words):
        load_pair(pair, "cpu")


def masks(tensors):
    """As files of earlier versions of transformers hold them."""
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    tensors["model.layers.0.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["model.layers.0.attn.bias"] = torch.ones(1, 1, 8, 8)


def only_output(tensors):
    tensors[OUTPUT] = tensors.pop(EMBEDDING)


ALLOWED = {
    "a tied layer that is there too": lambda tensors: tensors.update({OUTPUT: tensors[EMBEDDING].clone()}),
    "the tied layer alone": only_output,
    "masks and frequencies": masks,
}


@pytest.mark.parametrize("change", ALLOWED.values(), ids=ALLOWED)
def test_what_is_tied_or_no_weight_is_allowed(folders, tmp_path, change):
    loaded = load_pair(pair_of(spec(folders["tied"], change, tmp_path / "changed")), "cpu")
    expected = load_pair(pair_of(ModelSpec(model=str(folders["tied"]))), "cpu")
    logits = [pair.session("target").forward([5, 9, 17]).logits for pair in (loaded, expected)]
    assert torch.equal(*logits)
