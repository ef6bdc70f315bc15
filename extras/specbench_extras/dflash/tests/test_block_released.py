"""Released block drafters, written here as their authors' trainers write them, become heads that say the same."""

import json
from pathlib import Path

import oracle
import pytest
import torch
from gates import decode
from naive_block import lattice
from refusals import one_line_error
from safetensors.torch import save_file
from typer.testing import CliRunner

from specbench import config
from specbench.cli import app
from specbench.engine.models import folders
from specbench.engine.models.heads import read_head
from specbench.engine.session import Session
from specbench.engine.speculate import read_prompt
from specbench.methods import module
from specbench.methods.blocks import dflash
from specbench.methods.blocks.dflash import block_head
from specbench_extras import importer
from specbench_extras.dflash import released

# For the bundled target of 12 layers, of 192 numbers and 2,048 tokens.
SIZES = {"hidden_size": 192, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
TOLD = {
    **SIZES,
    **{"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "head_dim": 32, "num_hidden_layers": 2},
    **{"vocab_size": 2048, "num_target_layers": 12, "block_size": 5, "rms_norm_eps": 1e-5, "rope_theta": 500.0},
    **{"layer_types": ["full_attention"] * 2, "use_sliding_window": False, "attention_bias": False},
    "dflash_config": {"mask_token_id": 7, "target_layer_ids": [1, 5, 9]},
}


def checkpoint(folder: Path, kind: str = "dflash", change=None, **changes):
    """A checkpoint in bfloat16, and its tensors."""
    rng = torch.Generator().manual_seed(5)

    def noise(*shape):
        return (torch.randn(*shape, generator=rng) * 0.1).bfloat16()

    keyed = ("k_proj", "v_proj", *(("k_proj_target", "v_proj_target") if kind == "dflare" else ()))
    layer = {
        "self_attn.q_proj": noise(128, 192),
        **{f"self_attn.{name}": noise(64, 192) for name in keyed},
        "self_attn.o_proj": noise(192, 128),
        **{f"self_attn.{name}_norm": 1 + noise(32) for name in "qk"},
        **{f"mlp.{name}_proj": noise(64, 192) for name in ("gate", "up")},
        "mlp.down_proj": noise(192, 64),
        **{f"{name}_layernorm": 1 + noise(192) for name in ("input", "post_attention")},
    }
    tensors = {f"layers.{i}.{name}.weight": tensor + i * noise(1) for i in (0, 1) for name, tensor in layer.items()}
    tensors |= {"norm.weight": 1 + noise(192), "hidden_norm.weight": 1 + noise(192)}
    tensors |= {"fc.weight": noise(192, 576)} if kind == "dflash" else {"layer_fusion_weights": 9 * noise(2, 3)}
    if change:
        change(tensors)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**TOLD, **changes}))
    save_file(tensors, folder / "model.safetensors")
    return folder, tensors


@pytest.mark.parametrize("kind", ("dflash", "dflare"))
def test_a_released_head_drafts_what_its_own_weights_say(tmp_path, pocket, monkeypatch, kind):
    """By a second implementation, which reads the checkpoint and the target's embedding of the mask token."""
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)
    folder, tensors = checkpoint(tmp_path / "head", kind)
    file = released.import_head(folder, "pocket", tmp_path / "h.safetensors", kind)
    head = read_head(file, kind, pocket, None)
    assert head.trained["released"] == "head" and head.trained["block"] == 5 and head.trained["layers"] == [1, 5, 9]
    target = pocket.models["target"]
    model = block_head(head, target)
    text = [5, 17, 900, 33, 210, 8]
    with torch.no_grad():
        states = target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
    states = torch.cat([states[layer + 1][0] for layer in (1, 5, 9)], -1)
    table = target.get_input_embeddings().weight.detach().double()
    output = target.get_output_embeddings().weight.detach().double()
    weights = {name: tensor.double() for name, tensor in tensors.items()} | {"mask": table[7]}
    expected = lattice(weights, table, output, states.double(), 8, 5, heads=4, groups=2, eps=1e-5, theta=500.0)
    drafter = dflash.BlockDrafter(model, Session(model, "draft", vocabulary=2048), 5, "likeliest")
    drafter.begin(text[:-1])
    read_prompt(pocket.session("target"), drafter, text[:-1])
    assert torch.allclose(drafter.lattice(text).double(), expected, atol=1e-3) and expected.std() > 0.1
    values = {**config.load_method(kind).values, "head": str(file)}
    method = module(kind).build(module(kind).Settings(**values), pocket, None)
    assert method.lossless and method.reach == 5 and method.inputs() == head.hashes()
    assert decode(method, text, 12)[0] == oracle.greedy(target, text, 12)


def test_a_head_of_speculators_is_that_of_its_authors(tmp_path, pocket, monkeypatch):
    """It counts the target's layers from the state before the first one, and brings copies of the target's layers."""
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)
    target = pocket.models["target"]

    def brings(tensors):
        tensors["embed_tokens.weight"] = target.get_input_embeddings().weight.detach().clone()
        tensors["lm_head.weight"] = target.get_output_embeddings().weight.detach().clone()

    own, _ = checkpoint(tmp_path / "own")
    folder, _ = checkpoint(tmp_path / "other", change=brings)
    layer = {
        name: value for name, value in TOLD.items() if name not in ("architectures", "dflash_config", "block_size")
    }
    facts = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": layer,
        **{"block_size": 5, "draft_vocab_size": 2048, "mask_token_id": 7, "sample_from_anchor": False},
        "aux_hidden_state_layer_ids": [2, 6, 10],
    }
    files = []
    for where in (own, folder):
        files.append(
            read_head(released.import_head(where, "pocket", tmp_path / where.name / "h"), "dflash", pocket, None)
        )
        (folder / "config.json").write_text(json.dumps(facts))
    assert files[0].trained["layers"] == files[1].trained["layers"] == [1, 5, 9]
    assert {**files[0].trained, "released": ""} == {**files[1].trained, "released": ""}
    assert files[0].hashes() == files[1].hashes()
    for changes, words in (
        ({"draft_vocab_size": 64}, "it drafts 64 of 2048 tokens, which is not supported"),
        ({"sample_from_anchor": True}, "sample_from_anchor is True"),
        ({"speculators_model_type": "dspark"}, "its head is of DSpark"),
    ):
        (folder / "config.json").write_text(json.dumps({**facts, **changes}))
        with one_line_error(words):
            released.import_head(folder, "pocket", tmp_path / "h2")


@pytest.mark.parametrize(
    ("change", "changes", "words"),
    [
        (
            lambda tensors: tensors.update({"lm_head.weight": torch.zeros(2048, 192)}),
            {},
            "lm_head.weight is not the target",
        ),
        (None, {"hidden_size": 96}, "q_proj.weight is 128 x 192, and its config.json says 128 x 96"),
        (None, {"num_target_layers": 36}, "reads layers [1, 5, 9] of 36, but the target of pocket has 12"),
        (None, {"dflash_config": {"mask_token_id": 7, "target_layer_ids": [1, 5, 12]}}, "[1, 5, 12] of 12, but the"),
        (None, {"vocab_size": 151936}, "drafts 151936 tokens, but the target of pocket has 2048"),
        (
            None,
            {"dflash_config": {"mask_token_id": 2048, "target_layer_ids": [1, 5, 9]}},
            "takes token 2048 for a mask",
        ),
        (None, {"dflash_config": {"target_layer_ids": [1, 5, 9]}}, "which token stands for a mask"),
        (None, {"dflash_config": {"mask_token_id": 7}, "num_target_layers": None}, "which layers of the target"),
        (None, {"num_hidden_layers": 3}, "it lacks layers.2."),
        (None, {"num_hidden_layers": 1}, "it has layers.1."),
        (None, {"block_size": None}, "block_size"),
        (None, {"attention_bias": True}, "its attention has biases"),
        (None, {"layer_types": ["sliding_attention"] * 2}, "read a window of the text"),
        (None, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "its positions are dynamic"),
        (lambda tensors: tensors.pop("hidden_norm.weight"), {}, "it lacks hidden_norm.weight"),
        (lambda tensors: tensors.update({"norm.weight": tensors["norm.weight"] * torch.nan}), {}, "no numbers"),
    ],
)
def test_checkpoints_that_do_not_fit_are_one_line(tmp_path, pocket, monkeypatch, change, changes, words):
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)
    folder, _ = checkpoint(tmp_path / "head", "dflash", change, **changes)
    with one_line_error(words):
        released.import_head(folder, "pocket", tmp_path / "h.safetensors")
    assert not (tmp_path / "h.safetensors").exists()


def test_a_head_of_another_width_or_form(tmp_path, pocket, monkeypatch):
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)

    def narrow(tensors):
        for name, tensor in tensors.items():
            cut = tensor[:, :96] if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")) else tensor[:96]
            if "mlp" in name and "down" not in name:
                cut = tensor[:, :96]
            if name == "fc.weight":
                cut = tensor[:96, :288]
            tensors[name] = tensor if name.endswith(("q_norm.weight", "k_norm.weight")) else cut.contiguous()

    folder, _ = checkpoint(tmp_path / "narrow", "dflash", narrow, hidden_size=96)
    with one_line_error("reads 96 values, but the target of pocket has 192", "--pair"):
        released.import_head(folder, "pocket", tmp_path / "h")
    folder, _ = checkpoint(tmp_path / "mixed", "dflare")
    with one_line_error("holds no head of DFlash: it lacks fc.weight"):
        released.import_head(folder, "pocket", tmp_path / "h")


def test_the_layers_that_a_head_reads_follow_from_the_targets():
    """As the official code chooses them for a head that names none; some trainers name them next to `dflash_config`."""
    facts = {**TOLD, "num_target_layers": 36, "num_hidden_layers": 5, "dflash_config": {"mask_token_id": 1}}
    assert released.Config(**facts).layers_read() == [1, 9, 17, 25, 33]
    beside = {**facts, "dflash_config": {}, "mask_token_id": 3, "target_layer_ids": [24, 30]}
    assert (released.Config(**beside).layers_read(), released.Config(**beside).mask()) == ([24, 30], 3)


def test_the_command_line_imports_a_head_by_its_name_on_the_hub(tmp_path, monkeypatch):
    """From the local cache of the hub, where heads have no tokenizer."""
    folder, _ = checkpoint(tmp_path / "snapshots" / "0123")
    names = []
    monkeypatch.setattr(folders.hub, "cached", lambda *name: names.append(name) or folder)
    out = tmp_path / "h.safetensors"
    command = ["import", "dflash-head", "z-lab/made-DFlash-b5", "--pair", "pocket", "--out", str(out)]
    outcome = CliRunner().invoke(app, command)
    assert (
        outcome.exit_code == 0
        and f"dflash.head={out}" in outcome.output
        and names == [("z-lab/made-DFlash-b5", "main")]
    )
    assert CliRunner().invoke(app, command).exit_code != 0
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(folders.permissions, "may_fetch", lambda name: False)
    again = CliRunner().invoke(app, [*command[:-1], str(tmp_path / "other")])
    assert again.exit_code != 0 and "no such head" in " ".join(again.output.split())
