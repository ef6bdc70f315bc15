"""What lies in a model's folder: weights are safetensors of that folder, and no file leads out of it."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from made_runs import TOKENIZER
from oracle import tiny
from refusals import one_line_error
from word_models import pair_of, tokenizer

from specbench import permissions
from specbench.base import hub
from specbench.config import ModelSpec, UserError, own_pair
from specbench.engine.models.folders import model_folder
from specbench.engine.models.pair import load_pair
from specbench.engine.models.tokenizer import load_tokenizer

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Path:
    """A tiny model in several files, as `save_pretrained` writes a large one."""
    folder = tmp_path_factory.mktemp("sharded")
    tiny("llama").save_pretrained(folder, max_shard_size="10KB")
    tokenizer().save_pretrained(folder)
    assert len(shards(folder)) > 2
    return folder


@pytest.fixture
def folder(sharded, tmp_path) -> Path:
    """A copy to spoil. Outside of it lies a whole set of the same weights."""
    shutil.copytree(sharded, tmp_path / "model")
    shutil.copytree(sharded, tmp_path / "elsewhere")
    return tmp_path / "model"


def shards(folder: Path) -> list[str]:
    return sorted({*json.loads((folder / INDEX).read_text())["weight_map"].values()})


def changed(path: Path, **values) -> None:
    facts = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(facts | values))


def renamed(folder: Path, name: str, index: str = INDEX) -> None:
    """Let the index name the first shard otherwise."""
    first = shards(folder)[0]
    text = (folder / INDEX).read_text().replace(json.dumps(first), json.dumps(name))
    (folder / INDEX).unlink()
    (folder / index).write_text(text)


def pickled(folder: Path, name: str = "weights.bin") -> None:
    torch.save(dict(tiny("llama").state_dict()), folder / name)


def link(path: Path, to: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(to)


def of_bin(folder):
    pickled(folder)
    renamed(folder, "weights.bin")


def parent(folder):
    renamed(folder, f"../elsewhere/{shards(folder)[0]}")


def absolute(folder):
    renamed(folder, str(folder.parent / "elsewhere" / shards(folder)[0]))


def nested(folder):
    (folder / "more").mkdir()
    shutil.copy(folder / shards(folder)[0], folder / "more")
    renamed(folder, f"more/{shards(folder)[0]}")


def number(folder):
    changed(folder / INDEX, weight_map={"model.norm.weight": 3})


def no_map(folder):
    changed(folder / INDEX, weight_map=["a"])


def own_index(folder):
    renamed(folder, f"../elsewhere/{shards(folder)[0]}", "other.safetensors.index.json")
    changed(folder / "config.json", transformers_weights="other.safetensors.index.json")


def own_weights(folder):
    changed(folder / "config.json", transformers_weights=f"../elsewhere/{shards(folder)[0]}")


def own_pickle(folder):
    pickled(folder, "adapter_model.bin")
    changed(folder / "config.json", transformers_weights="adapter_model.bin")


def adapters(folder):
    pickled(folder, "adapter_model.bin")
    changed(folder / "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(folder.parent / "elsewhere"))


def of_another(folder):
    """Only adapters, of a model that is named."""
    (folder / "config.json").unlink()
    adapters(folder)


def configurations(folder):
    changed(folder / "config.json", configuration_files=["../elsewhere/config.0.1.json"])


def tokenizers(folder):
    changed(folder / "tokenizer_config.json", fast_tokenizer_files=["../elsewhere/tokenizer.json"])


def linked_shard(folder):
    link(folder / shards(folder)[0], folder.parent / "elsewhere" / shards(folder)[0])


def linked_configuration(folder):
    link(folder / "config.json", Path("../elsewhere/config.json"))


def linked_folder(folder):
    link(folder / "additional_chat_templates", folder.parent / "elsewhere")


def pipe(folder):
    (folder / "generation_config.json").unlink()
    os.mkfifo(folder / "generation_config.json")


def device(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("/dev/zero")


HOSTILE = {
    **{each.__name__: (each, "safetensors") for each in (of_bin, parent, absolute, nested, number, own_index)},
    **{each.__name__: (each, "safetensors") for each in (own_weights, own_pickle)},
    **{each.__name__: (each, "adapters") for each in (adapters, of_another)},
    **{each.__name__: (each, "only files of its folder") for each in (configurations, tokenizers)},
    **{each.__name__: (each, "is a link out of") for each in (linked_shard, linked_configuration, linked_folder)},
    "device": (device, "is a link out of"),
    "no_map": (no_map, "weight_map"),
    "pipe": (pipe, "not a regular file"),
}


@pytest.mark.parametrize("allow_pickle", [False, True])
@pytest.mark.parametrize(("spoil", "word"), HOSTILE.values(), ids=HOSTILE)
def test_what_a_folder_refers_to_lies_in_it(folder, spoil, word, allow_pickle):
    """Also under --allow-pickle: pickles are then read where they are called so, never through an index of others."""
    spoil(folder)
    with one_line_error(word, str(folder)):
        load_pair(pair_of(ModelSpec(model=str(folder))), "cpu", allow_pickle=allow_pickle)
    with one_line_error(word, str(folder)):
        load_tokenizer(ModelSpec(model=str(folder)))


def weights(folder: Path) -> torch.Tensor:
    return load_pair(pair_of(ModelSpec(model=str(folder))), "cpu").models["target"].get_input_embeddings().weight


def test_several_files_of_one_folder_are_a_model(folder):
    expected = weights(folder)
    assert torch.equal(expected, tiny("llama").get_input_embeddings().weight.float())
    (folder.parent / "link").symlink_to(folder)
    assert torch.equal(weights(folder.parent / "link"), expected), "the folder itself may be a link"
    (folder / "tokenizer.json").rename(folder / "own.json")
    (folder / "tokenizer.json").symlink_to("own.json")
    assert torch.equal(weights(folder), expected), "a link may stay in the folder"


@pytest.fixture
def snapshot(folder) -> Path:
    """The model as the hub's cache keeps it: names in a snapshot are links to blobs, which have no names."""
    home = folder.parent / "models--some--model"
    (home / "blobs").mkdir(parents=True)
    made = home / "snapshots" / ("0" * 40)
    made.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(home / "blobs" / f"{number:02}")
        (made / path.name).symlink_to(Path("..", "..", "blobs", f"{number:02}"))
    return made


def test_a_snapshot_of_the_hubs_cache_links_to_its_own_blobs(snapshot, sharded):
    assert torch.equal(weights(snapshot), weights(sharded))


def test_and_to_nothing_else(snapshot):
    first = sorted(snapshot.glob("*.safetensors"))[0]
    for to in (snapshot.parents[2] / "elsewhere" / first.name, snapshot.parents[1] / "blobs" / "own"):
        if to.name == "own":
            to.symlink_to(snapshot.parents[2] / "elsewhere" / first.name)
        link(first, to)
        with one_line_error("is a link out of", first.name):
            weights(snapshot)


@pytest.mark.parametrize("name", ["/nowhere/model", "../model", "~/model", "./model", "one/two/three", ".model"])
def test_a_path_that_leads_nowhere_is_not_told_to_the_hub(name, monkeypatch):
    monkeypatch.setattr(hub, "online", lambda what: pytest.fail(f"the hub was asked for {what}"))
    monkeypatch.setattr(permissions, "may_fetch", lambda name: True)
    with pytest.raises(UserError, match="there is no such folder"):
        model_folder(ModelSpec(model=name))


@pytest.mark.parametrize(
    "name, changes",
    [
        ("config.json", {"vocab_size": [1]}),
        ("config.json", {"num_attention_heads": None}),
        ("tokenizer.json", {"post_processor": {"type": "None"}}),
        ("tokenizer.json", {"added_tokens": "x"}),
        ("tokenizer_config.json", {"pad_token": {"a": 1}}),
    ],
)
def test_a_damaged_folder_is_refused_in_a_line(tmp_path, name, changes):
    """Whatever transformers raises on it."""
    tiny("llama", 0, len(TOKENIZER)).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    path = tmp_path / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=r"cannot load .*; |cannot load .* -- ") as raised:
        load_pair(own_pair(str(tmp_path)), "cpu")
    assert str(tmp_path) in str(raised.value) and "\n" not in str(raised.value)
