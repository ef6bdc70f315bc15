"""Model folders that ask for more than any model needs are refused before anything is built of them."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from refusals import one_line_error

from specbench.config import SUITES, ModelSpec
from specbench.engine.models import tokenizer
from specbench.engine.models.folders import model_folder
from specbench.engine.models.tokenizer import load_tokenizer
from specbench.measure.prompts import chat_of, encode
from specbench.tasks import timed

SOURCE = SUITES / "pairs" / "weights" / "draft"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(SOURCE, tmp_path / "model"))


def changed(folder, file, change):
    path = folder / file
    settings = json.loads(path.read_text()) if path.exists() else {}
    change(settings)
    path.write_text(json.dumps(settings))


def refused(folder, *words):
    with one_line_error(*words):
        model_folder(ModelSpec(model=str(folder)))


def test_the_bundled_models_are_within_the_limits():
    for place in sorted(path.parent for path in SOURCE.parent.glob("*/config.json")):
        assert model_folder(ModelSpec(model=str(place))) == place


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("num_hidden_layers", 10**6), ("n_layer", 10**6), ("layer_types", ["full_attention"] * 3000)),
        *(("vocab_size", 10**12), ("hidden_size", 10**9), ("num_experts", 10**10), ("max_position_embeddings", 10**15)),
    ],
)
@pytest.mark.parametrize("within", [False, True])
def test_settings_of_no_model(folder, key, value, within):
    def change(settings):
        (settings.setdefault("text_config", {}) if within else settings)[key] = value

    changed(folder, "config.json", change)
    refused(folder, "config.json", key, "is read")


@pytest.mark.parametrize("value", ["</s>", {"id": 3}, [[3]], [3, "4"], 1.5, -7, True, 2**40])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_end_tokens_that_are_no_ids(folder, file, value):
    changed(folder, file, lambda settings: settings.update(eos_token_id=value))
    refused(folder, file, "eos_token_id", "must be a token id")


def test_a_million_end_tokens(folder):
    changed(folder, "config.json", lambda settings: settings.update(eos_token_id=list(range(10**6))))
    refused(folder, "config.json", "eos_token_id lists 1000000 ids")


@pytest.mark.parametrize("value", [3, [3, 4], None, -1])
def test_end_tokens_that_are_ids(folder, value):
    changed(folder, "generation_config.json", lambda settings: settings.update(eos_token_id=value))
    assert model_folder(ModelSpec(model=str(folder))) == folder


def hole(tokenizer):
    tokenizer["model"]["vocab"]["far away"] = 2**31 - 2


def added_far_away(tokenizer):
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": 2**30, "content": "<far>"})


def growing(tokenizer):
    twice = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [twice] * 30}


def swelling(tokenizer):
    tokenizer["decoder"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10**6}


@pytest.mark.parametrize(
    ("change", "words"),
    [(hole, "has the id"), (added_far_away, "has the id"), (growing, "its normalizer"), (swelling, "its decoder")],
)
def test_tokenizers_that_take_gigabytes(folder, change, words):
    changed(folder, "tokenizer.json", change)
    refused(folder, "tokenizer.json", words)
    with one_line_error(words):
        load_tokenizer(ModelSpec(model=str(folder)))


def test_a_tokenizer_may_change_texts_a_little(folder):
    def change(tokenizer):
        space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]}

    changed(folder, "tokenizer.json", change)
    assert model_folder(ModelSpec(model=str(folder))) == folder


@pytest.mark.parametrize(
    ("limit", "value", "words"), [("MOST_MEMORY", 1 << 20, "of memory"), ("MOST_SECONDS", 0, "0 s")]
)
def test_a_tokenizer_is_tried_apart(folder, monkeypatch, limit, value, words):
    """Its memory and its time are those of another process."""

    def many(settings):
        vocabulary = settings["model"]["vocab"]
        vocabulary.update({f"word {i}": len(vocabulary) + i for i in range(200_000)})

    changed(folder, "tokenizer.json", many)
    assert load_tokenizer(ModelSpec(model=str(folder))).decode([80])
    monkeypatch.setattr(tokenizer, limit, value)
    os.utime(folder / "tokenizer.json", (1, 1))  # or it would not be tried again
    with one_line_error("its tokenizer.json takes more than", words):
        load_tokenizer(ModelSpec(model=str(folder)))


def test_a_length_that_is_no_number(folder):
    """It would be compared with the length of each prompt."""
    changed(folder, "tokenizer_config.json", lambda settings: settings.update(model_max_length="long"))
    refused(folder, "model_max_length is 'long'", "must be a number")


def test_a_tokenizer_that_is_a_model(folder):
    """transformers makes an object of whatever class the file names, and loads its weights."""
    changed(folder, "tokenizer_config.json", lambda settings: settings.update(tokenizer_class="AutoModel"))
    with one_line_error("names LlamaModel, which is no tokenizer"):
        load_tokenizer(ModelSpec(model=str(folder)))


def test_a_pattern_that_searches_without_an_end_is_one_line(folder):
    """The library gives up by a panic, which no `except Exception` catches."""
    pattern = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    changed(folder, "tokenizer.json", lambda settings: settings.update(pre_tokenizer=pattern))
    pair = SimpleNamespace(name="slow", tokenizer=load_tokenizer(ModelSpec(model=str(folder))))
    assert encode(pair, "hello")
    with one_line_error("the tokenizer of slow fails on a prompt", "limit"):
        encode(pair, "x" * 40)


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (LOOPS, "took longer than 3 s"),
        ("{{ 'x' * 10**11 }}", "takes more memory than there is"),
        ("{{ 'x' * 10**7 }}", "makes 10000000 characters"),
    ],
)
def test_a_chat_template_that_does_not_end(folder, template, words, monkeypatch):
    monkeypatch.setattr(timed, "ANSWER_SECONDS", 3)
    changed(folder, "tokenizer_config.json", lambda settings: settings.update(chat_template=template))
    pair = SimpleNamespace(name="loops", tokenizer=load_tokenizer(ModelSpec(model=str(folder))))
    with one_line_error("the chat template of loops", words):
        chat_of(pair)
    pair.tokenizer.chat_template = "{{ messages[0].content }}!"
    assert chat_of(pair)([{"role": "user", "content": "a"}]) == "a!"


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json", "merges.txt", "spiece.model"])
def test_a_sparse_file_of_20_gigabytes(folder, file):
    with (folder / file).open("wb") as sparse:
        sparse.truncate(20 * 10**9)
    refused(folder, file, "20000000000 bytes" if file == "config.json" else "only weights are so large")


def test_links_in_a_circle(folder):
    os.symlink("b.json", folder / "a.json")
    os.symlink("a.json", folder / "b.json")
    refused(folder, "a.json")
