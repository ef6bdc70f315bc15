"""Pairs of models from folders: what fits together is loaded and cut to one vocabulary, the rest is refused."""

import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from oracle import ARCHITECTURES, tiny
from refusals import one_line_error
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from word_models import WORDS, pair_of, tokenizer

from specbench.config import ModelSpec, PairSpec, UserError
from specbench.engine.models.layer_ranges import Tap, layer_range
from specbench.engine.models.pair import check_rollback, load_pair
from specbench.engine.models.tokenizer import vocabulary_hash
from specbench.engine.session import Session

PROMPT = [5, 9, 17, 3, 44, 8]


def save(folder: Path, model, words: PreTrainedTokenizerFast | None = None) -> ModelSpec:
    model.save_pretrained(folder)
    (words or tokenizer()).save_pretrained(folder)
    return ModelSpec(model=str(folder), dtype="float64")


def refused(spec: PairSpec, *options, **more) -> str:
    """The one line that refuses a pair."""
    with one_line_error() as caught:
        load_pair(spec, *(options or ("cpu",)), **more)
    return str(caught.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> ModelSpec:
    return save(tmp_path_factory.mktemp("llama"), tiny("llama"))


# What loads


@pytest.mark.parametrize("architecture", ("llama", "gemma2", "opt"))
def test_the_first_layers_of_a_target_draft_for_it(tmp_path, architecture):
    """They go into its own norm and output, the file has the weights once, and `layer_range` says the same."""
    model = tiny(architecture, 1).double()
    whole = save(tmp_path / "whole", model)
    spec = pair_of(whole, whole.model_copy(update={"layers": 1}))
    pair = load_pair(spec, "cpu", "float64")
    early, asked = pair.models["draft"], torch.tensor([PROMPT])
    assert pair.models["target"].config.num_hidden_layers == model.config.num_hidden_layers > 1
    assert pair.describe()["draft"]["layers"] == f"1 of {model.config.num_hidden_layers}"
    with torch.no_grad():
        wanted = layer_range(model, 0, 1, Tap(False))(asked, use_cache=False).logits
        assert torch.allclose(early(asked, use_cache=False).logits, wanted, atol=1e-4)
        assert torch.allclose(pair.models["target"](asked).logits, model(asked).logits, atol=1e-4)
    read = Session(early, "draft").forward(PROMPT, keep=1).logits
    assert torch.allclose(read[-1], wanted[0, -1], atol=1e-4)
    many = whole.model_copy(update={"layers": model.config.num_hidden_layers})
    assert "so `layers` must be from 1 to" in refused(pair_of(whole, many))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_pairs_of_every_architecture_load_and_give_the_models_logits(tmp_path, architecture):
    original = {"target": tiny(architecture, 1), "draft": tiny(architecture, 2)}
    specs = {role: save(tmp_path / role, model) for role, model in original.items()}
    pair = load_pair(pair_of(specs["target"], specs["draft"]), "cpu", "float64")
    for role, model in original.items():
        assert pair.models[role].dtype == torch.float64 and not pair.models[role].training
        with torch.no_grad():
            expected = model(torch.tensor([PROMPT])).logits[0]
        torch.testing.assert_close(pair.session(role).forward(PROMPT).logits, expected, rtol=0, atol=1e-4)
    assert pair.context == 256
    assert pair.device == torch.device("cpu")


def test_sliding_windows_roll_back(tmp_path):
    """A window shorter than the text: rolled back and fed again, the logits are those of the whole text."""
    model = tiny("gemma2", sliding_window=4)
    pair = load_pair(pair_of(save(tmp_path, model)), "cpu", "float64")
    session = pair.session("target")
    session.forward(list(range(2, 30)))
    session.truncate(3)
    session.forward([60, 61, 62, 63, 64, 65])
    session.truncate(12 - 6)
    output = session.forward([7, 8, 9, 10]).logits[-1]
    with torch.no_grad():
        expected = model(torch.tensor([[2, 3, 4, 60, 61, 62, 7, 8, 9, 10]])).logits[0, -1]
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-4)


def test_padded_vocabularies_are_cut_to_the_shared_part(tmp_path):
    big, small = tiny("llama", 1, vocab=128), tiny("llama", 2, vocab=96)
    pair = load_pair(pair_of(save(tmp_path / "target", big), save(tmp_path / "draft", small)), "cpu", "float64")
    assert pair.vocabulary == 96
    for role, model in (("target", big), ("draft", small)):
        logits = pair.session(role).forward(PROMPT).logits
        assert logits.shape == (len(PROMPT), 96)
        with torch.no_grad():
            torch.testing.assert_close(logits, model(torch.tensor([PROMPT])).logits[0, :, :96], rtol=0, atol=1e-4)
    assert pair.session("target").restart(PROMPT).logits.shape == (1, 96)


def test_dtypes(saved):
    spec = saved.model_copy(update={"dtype": "bfloat16"})
    assert load_pair(pair_of(spec), "cpu").models["target"].dtype == torch.float32, "on a CPU auto is float32"
    for name in ("float32", "float64", "bfloat16"):
        pair = load_pair(pair_of(spec), "cpu", name)
        assert pair.models["target"].dtype == getattr(torch, name)
        assert pair.describe()["target"]["dtype"] == name


def test_device_auto_without_a_gpu_is_the_cpu(saved, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load_pair(pair_of(saved)).device.type == "cpu"


@pytest.mark.parametrize(("ids", "expected"), [([7, 8], {1, 7, 8}), (7, {1, 7}), (None, {1})])
def test_every_end_token_is_known(tmp_path, ids, expected):
    model = tiny("llama")
    model.generation_config.eos_token_id = ids
    assert load_pair(pair_of(save(tmp_path, model)), "cpu").eos_ids == expected


def test_description_tells_models_apart(tmp_path, saved):
    other = save(tmp_path / "other", tiny("llama", seed=5))
    pair = load_pair(pair_of(saved, other), "cpu")
    description = pair.describe()
    assert description["target"]["model"] == saved.model and description["target"]["architecture"] == "LlamaForCausalLM"
    assert description["target"]["parameters"] == sum(p.numel() for p in tiny("llama").parameters())
    assert description["target"]["weights_hash"] != description["draft"]["weights_hash"]
    assert description == load_pair(pair_of(saved, other), "cpu").describe()


def test_a_pair_without_a_draft_says_so_when_one_is_wanted(saved):
    pair = load_pair(pair_of(saved), "cpu")
    with pytest.raises(UserError, match="tiny has no draft model"):
        pair.session("draft")


def test_a_model_without_a_limit_of_positions_has_a_context(tmp_path):
    """Bloom's positions are relative: its configuration names no largest one."""
    torch.manual_seed(0)
    config = transformers.BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4)
    pair = load_pair(pair_of(save(tmp_path, AutoModelForCausalLM.from_config(config))), "cpu")
    assert pair.context >= 2048


# Tokenizers


def test_tokenizers_that_differ_only_in_added_special_tokens_fit(tmp_path, saved):
    draft = save(tmp_path, tiny("llama", seed=2), tokenizer(extra=("<one>", "<two>")))
    renamed = save(tmp_path / "renamed", tiny("llama", seed=2), tokenizer(extra=("<reserved>", "<two>")))
    for pair in (load_pair(pair_of(saved, draft), "cpu"), load_pair(pair_of(draft, renamed), "cpu")):
        assert not pair.translations, "the draft's tokens are the target's"


def test_a_draft_with_another_tokenizer_is_translated(tmp_path, saved):
    """One word of 90 is another: the pair loads, and its draft never says that word (more in test_translate.py)."""
    other = save(tmp_path, tiny("llama", seed=2), tokenizer(last="another"))
    pair = load_pair(pair_of(saved, other), "cpu", "float64")
    logits = pair.session("draft").forward(PROMPT).logits
    assert logits.shape == (len(PROMPT), 96) and pair.vocabulary == 96
    assert logits[0].isfinite().nonzero()[:, 0].tolist() == list(range(WORDS - 1))


def test_members_with_another_tokenizer_are_refused(tmp_path, saved):
    other = save(tmp_path, tiny("llama", seed=2), tokenizer(last="another"))
    members = [saved.model_dump(), {**other.model_dump(), "role": "third"}]
    text = refused(PairSpec(name="tiny", description="", target=saved, members=members))
    assert saved.model in text and other.model in text and "tokenizer" in text and "family" in text
    assert re.search("tokenizers of .* differ.*choose members of", text)


def test_vocabulary_hash_sees_every_id():
    class Swapped:
        def get_vocab(self):
            return tokenizer().get_vocab() | {"w5": 6, "w6": 5}

        def get_added_vocab(self):
            return tokenizer().get_added_vocab()

    assert vocabulary_hash(tokenizer()) == vocabulary_hash(tokenizer())
    assert vocabulary_hash(tokenizer()) != vocabulary_hash(Swapped())  # type: ignore[arg-type]
    assert len(vocabulary_hash(tokenizer())) == 16


# What cannot roll back

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
WITHOUT_ROLLBACK: dict[str, dict] = {"xlstm": {}}  # of its own kind


@pytest.mark.parametrize("kind", WITHOUT_ROLLBACK)
def test_models_that_cannot_roll_back_are_refused_by_name(kind):
    if kind not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {kind}")
    fields = SIZES | WITHOUT_ROLLBACK[kind]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **fields)
    model = AutoModelForCausalLM.from_config(config).eval()
    with one_line_error(type(model).__name__):
        check_rollback(Session(model, "target"))


def test_a_saved_model_that_cannot_roll_back_is_refused_at_loading(tmp_path, saved):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("xlstm", **SIZES)
    spec = save(tmp_path, AutoModelForCausalLM.from_config(config))
    text = refused(pair_of(spec))
    assert "xLSTMForCausalLM" in text and "roll" in text
    assert "xLSTMForCausalLM" in refused(pair_of(saved, spec))


# What cannot be loaded


def without(*names: str):
    return lambda folder: [(folder / name).unlink() for name in names]


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shutil.rmtree, ("config.json",)),
        (without("config.json", "generation_config.json", "model.safetensors"), ("config.json",)),
        (without("tokenizer.json", "tokenizer_config.json"), ("tokenizer",)),
        (cut, ()),
        (lambda folder: (folder / "config.json").write_text("{"), ()),
    ],
    ids=("no folder", "no model", "no tokenizer", "broken weights", "broken configuration"),
)
def test_folders_that_cannot_be_loaded(tmp_path, spoil, words):
    spec = save(tmp_path / "spoilt", tiny("llama"))
    spoil(tmp_path / "spoilt")
    text = refused(pair_of(spec))
    assert all(word in text for word in (str(tmp_path / "spoilt"), *words))


def test_pickled_weights_need_consent(tmp_path):
    model = tiny("llama")
    spec = save(tmp_path, model)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    text = refused(pair_of(spec))
    assert "safetensors" in text and "allow-pickle" in text.replace("_", "-")
    pair = load_pair(pair_of(spec), "cpu", "float64", allow_pickle=True)
    assert torch.equal(pair.models["target"].get_input_embeddings().weight, model.get_input_embeddings().weight)


@pytest.mark.parametrize(("device", "dtype"), [("toaster", "auto"), ("cuda:99", "auto"), ("cpu", "float7")])
def test_unknown_devices_and_dtypes(saved, device, dtype):
    assert (device if dtype == "auto" else dtype) in refused(pair_of(saved), device, dtype)


def test_tilde_is_the_home_folder(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(saved.model, tmp_path / "here")
    assert load_pair(pair_of(ModelSpec(model="~/here")), "cpu").vocabulary == 96
