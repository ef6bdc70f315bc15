"""The bundled pair with states: it is small, rolls back in two ways, and its module is where published ones are."""

import functools

import pytest
import torch
from gates import decode, with_settings
from safetensors.torch import load_file, save_file

from pocket.build import WEIGHTS
from pocket.hybrid import with_module
from specbench.config import load_pair as read_pair
from specbench.engine.models.mtp import load_modules
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes import states
from specbench.measure.prompts import encode
from specbench_extras.bench.prompts import bundled_prompts

NEW = 24
FILES = [WEIGHTS / name / "model.safetensors" for name in ("hybrid", "hybrid-draft")]
# What a trained module calls its parts, and what Qwen 3.5's checkpoints call them.
NAMES = {
    "layers.0.eh_proj.weight": "mtp.fc.weight",
    "layers.0.enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "layers.0.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "layers.0.post_norm.weight": "mtp.norm.weight",
    "layers.0.mtp_block.self_attn.q_proj.weight": "mtp.layers.0.self_attn.q_proj.weight",
    "layers.0.mtp_block.mlp.up_proj.weight": "mtp.layers.0.mlp.up_proj.weight",
}


@functools.cache
def pair(dtype="float64"):
    return load_pair(read_pair("pocket-hybrid"), device="cpu", dtype=dtype)


@functools.cache
def prompts():
    return [encode(pair(), prompt) for family in ("gsm8k", "humaneval") for prompt in bundled_prompts(family, 2)]


@functools.cache
def whole():
    """The greedy texts by forwards without a cache."""
    texts = [list(prompt) for prompt in prompts()]
    with torch.inference_mode():
        for text in texts * NEW:
            text.append(int(pair().models["target"](torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    return [text[-NEW:] for text in texts]


def test_it_is_small_and_goes_back_in_two_ways():
    assert sum(file.stat().st_size for file in FILES) < 3_000_000
    pair().session("target"), pair().session("draft")
    ways = {role: facts["rollback"] for role, facts in pair().describe().items()}
    assert ways == {"target": states.AGAIN, "draft": states.RECORDED}


@pytest.mark.parametrize(
    ("name", "changes", "least"),
    [("sps", {}, 0.15), ("mtp", {"steps": 3}, 0.1), ("pld", {}, 0.0), ("suffix", {"form": "chain"}, 0.0)],
)
def test_texts_are_those_of_the_target_alone(name, changes, least):
    """And enough drafts are accepted, and rejected, that rolling back shows."""
    decoded = [decode(with_settings(name, pair(), 4, changes), prompt, NEW) for prompt in prompts()]
    assert [tokens for tokens, _ in decoded] == whole()
    rounds = [one for _, rounds in decoded for one in rounds[1:]]
    drafted, accepted = (sum(getattr(one, what) for one in rounds) for what in ("drafted", "accepted"))
    assert least * drafted <= accepted < drafted


def test_the_module_is_stored_as_published_ones_are(tmp_path):
    file = tmp_path / "model.safetensors"
    stored = load_file(FILES[0])
    save_file({name: tensor for name, tensor in stored.items() if not name.startswith("mtp.")}, file, {"format": "pt"})
    modules = load_modules(pair().models["target"])
    assert all(torch.equal(modules.state_dict()[name], stored[theirs].double()) for name, theirs in NAMES.items())
    own = {f"layers.{name}": tensor.contiguous() for name, tensor in modules.layers.state_dict().items()}
    save_file(own, tmp_path / "module.safetensors")
    with_module(file, tmp_path / "module.safetensors")
    again = load_file(file)
    assert again.keys() == stored.keys() and all(torch.equal(tensor, stored[name]) for name, tensor in again.items())
