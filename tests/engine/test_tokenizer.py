"""A tokenizer that is as it was recorded is loaded without models; any other as transformers chooses."""

import json
import shutil
from contextlib import suppress

import pytest
from transformers import AutoTokenizer

from specbench.config import SUITES, ModelSpec, UserError
from specbench.engine.models.tokenizer import load_tokenizer, tokenizer_hash

FOLDER = SUITES / "pairs" / "weights" / "target"


@pytest.fixture
def chosen(monkeypatch):
    """What was left to AutoTokenizer."""
    asked, whole = [], AutoTokenizer.from_pretrained
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *a, **k: asked.append(a) or whole(*a, **k))
    return asked


def test_one_that_is_as_recorded_is_of_the_class_that_its_files_name(chosen):
    spec = ModelSpec(model=str(FOLDER))
    by_transformers = load_tokenizer(spec)
    state = tokenizer_hash(by_transformers)
    assert len(chosen) == 1
    same = load_tokenizer(spec, state=state)
    assert len(chosen) == 1 and type(same) is type(by_transformers)
    ids = by_transformers("She works 4 hours a day. 日本")["input_ids"]
    assert (
        same.decode(ids) == by_transformers.decode(ids)
        and same("12 + 3")["input_ids"] == by_transformers("12 + 3")["input_ids"]
    )


@pytest.mark.parametrize("named", ["TokenizersBackend", "AutoModel", "of_my_own", None, 5, "__doc__"])
def test_any_other_is_chosen_by_transformers(named, chosen, tmp_path):
    """Also where the files name no class, or what is no tokenizer."""
    shutil.copytree(FOLDER, tmp_path / "model")
    file = tmp_path / "model" / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"tokenizer_class": named, "model_max_length": 77}
    if named is None:
        del settings["tokenizer_class"]
    file.write_text(json.dumps(settings))
    with suppress(UserError):  # transformers takes no number for a class
        load_tokenizer(ModelSpec(model=str(tmp_path / "model")), state="0448aa2b6629c8c7")
    assert len(chosen) == 1
