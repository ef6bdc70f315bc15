"""LoRA adapters of peft on a pair's models: the sums by hand, what merges and what stays apart, what is refused."""

import json
import shutil
from pathlib import Path

import peft
import pytest
import torch
from gates import decode
from oracle import greedy, tiny
from refusals import one_line_error
from safetensors.torch import load_file, save_file
from test_models import PROMPT, save
from word_models import pair_of

from specbench.config import ModelSpec
from specbench.config import load_pair as read_pair
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes.static import STATIC
from specbench.engine.session import Session
from specbench.methods.chains.vanilla import Vanilla

RANK, ALPHA = 4, 6
MODULES = ("q_proj", "down_proj")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> ModelSpec:
    return save(tmp_path_factory.mktemp("base"), tiny("llama"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Adapters as peft saves them, with numbers that matter."""
    folder = tmp_path_factory.mktemp("adapters")
    settings = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(MODULES), task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(tiny("llama"), settings)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    wrapped.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "adapters"))


def by_hand(saved: Path) -> torch.nn.Module:
    """The model with W + (α / r) B A in place of each weight that has an adapter, from the file alone."""
    model, tensors = tiny("llama"), load_file(saved / "adapter_model.safetensors")
    weights = dict(model.named_parameters())
    downs = [name for name in tensors if name.endswith("lora_A.weight")]
    assert len(downs) == len(MODULES) * 2
    with torch.no_grad():
        for name in downs:
            up = tensors[name.replace("lora_A", "lora_B")].double()
            place = name.removeprefix("base_model.model.").replace("lora_A.", "")
            weights[place] += ALPHA / RANK * up @ tensors[name].double()
    return model


@pytest.mark.parametrize("merge", [True, False])
def test_adapters_add_a_product_to_the_weights(base, saved, merge):
    spec = base.model_copy(update={"adapter": str(saved), "merge": merge})
    pair = load_pair(pair_of(spec, base), "cpu", "float64")
    expected = by_hand(saved)
    with torch.no_grad():
        logits = expected(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(pair.session("target").forward(PROMPT).logits, logits, rtol=0, atol=1e-4)
    without = tiny("llama")(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(pair.session("draft").forward(PROMPT).logits, without, rtol=0, atol=1e-4)
    assert not torch.allclose(logits, without, atol=0.5), "the adapters change much"
    for runtime in ("eager", "static"):
        model = pair.models["target"]
        session = Session(model, "target", runtime=STATIC) if runtime == "static" else Session(model, "target")
        assert decode(Vanilla(session), PROMPT, 12)[0] == greedy(expected, PROMPT, 12), runtime


def test_merged_adapters_leave_a_plain_model(base, saved):
    spec = base.model_copy(update={"adapter": str(saved)})
    model = load_pair(pair_of(spec), "cpu", "float64").models["target"]
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in tiny("llama").named_parameters()]
    assert type(model).__name__ == "LlamaForCausalLM" and not any(p.requires_grad for p in model.parameters())


def test_the_manifest_tells_adapters_apart(base, saved, folder):
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file({name: tensor * 2 for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    plain, merged, kept, other = (
        load_pair(pair_of(base.model_copy(update=changes)), "cpu").describe()["target"]
        for changes in (
            {},
            {"adapter": str(saved)},
            {"adapter": str(saved), "merge": False},
            {"adapter": str(folder)},
        )
    )
    assert "adapter" not in plain and "adapter_hash" not in plain
    assert merged["adapter"] == f"{saved}, merged" and kept["adapter"] == f"{saved}, kept"
    assert merged["adapter_hash"] == kept["adapter_hash"] != other["adapter_hash"]
    assert len({described["weights_hash"] for described in (plain, merged, kept, other)}) == 4


def test_a_pairs_file_names_them(base, saved, tmp_path):
    path = tmp_path / "pair.yaml"
    path.write_text(f"description: d\ntarget: {{model: {base.model}, adapter: {saved}, merge: false}}\n")
    assert read_pair(str(path)).target == ModelSpec(model=base.model, adapter=str(saved), merge=False)


# What is refused


def no_weights(folder):
    (folder / "adapter_model.safetensors").unlink()


def no_settings(folder):
    (folder / "adapter_config.json").unlink()


def cut(folder):
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:500])


def changed(**changes):
    def spoil(folder):
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def rewritten(change):
    def spoil(folder):
        path = folder / "adapter_model.safetensors"
        save_file(change(load_file(path)), path)

    return spoil


def linked(folder):
    path = folder / "adapter_model.safetensors"
    (folder.parent / "elsewhere").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to("../elsewhere")


SPOILT = {
    "no weights": (no_weights, "adapter_model.safetensors"),
    "no settings": (no_settings, "adapter_config.json"),
    "broken weights": (cut, "is damaged"),
    "a link out": (linked, "is a link out of"),
    "another kind": (changed(peft_type="IA3"), "LORA are read, not IA3"),
    "code": (changed(megatron_config={"a": 1}, megatron_core="os"), "megatron_con"),
    "residual weights": (changed(init_lora_weights="pissa"), "pissa"),
    "no rank": (changed(r=0), "does not fit"),
    "settings of another type": (changed(r="x"), ""),
    "modules of another model": (changed(target_modules=["c_attn"]), "does not fit"),
    "another rank": (changed(r=2), "does not fit"),
    "fewer modules": (changed(target_modules=["q_proj"]), "no place for"),
    "more modules": (changed(target_modules=["q_proj", "down_proj", "v_proj"]), "lacks weights"),
    "not finite": (rewritten(lambda tensors: {n: t * float("nan") for n, t in tensors.items()}), "not finite"),
}


@pytest.mark.parametrize(("spoil", "words"), SPOILT.values(), ids=SPOILT)
def test_what_is_no_adapter_of_the_model_is_refused(base, folder, spoil, words):
    spoil(folder)
    with one_line_error(str(folder), words):
        load_pair(pair_of(base.model_copy(update={"adapter": str(folder)})), "cpu")


@pytest.mark.parametrize("name", ["/nowhere/adapters", "../adapters", "some/adapters"])
def test_adapters_that_are_not_here(base, name):
    with one_line_error(f"adapter {name}", "no such folder"):
        load_pair(pair_of(base.model_copy(update={"adapter": name})), "cpu")


def test_adapters_of_embeddings_that_are_the_output_layer_too(tmp_path):
    model = tiny("llama", tie_word_embeddings=True)
    spec = save(tmp_path / "model", model)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["embed_tokens"]))
    wrapped.save_pretrained(tmp_path / "adapters")
    with one_line_error("output layer too"):
        load_pair(pair_of(spec.model_copy(update={"adapter": str(tmp_path / "adapters")})), "cpu")


def test_adapters_beside_weights_are_refused_with_the_way_out(base, saved, tmp_path):
    folder = Path(shutil.copytree(base.model, tmp_path / "both"))
    shutil.copy(saved / "adapter_config.json", folder)
    with one_line_error("adapter:", "adapters next to its weights"):
        load_pair(pair_of(ModelSpec(model=str(folder))), "cpu")
