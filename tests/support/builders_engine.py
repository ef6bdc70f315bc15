"""What tests of the engine and its methods build alike: methods with changed settings, pairs without a draft."""

import json
from types import SimpleNamespace

import torch
from gates import DEVICE, pair
from made_runs import TOKENIZER
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from specbench.config import Setting, UserError, load_method
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session, Unwatched
from specbench.engine.types import Method
from specbench.measure import prepare


def build(models: Pair, name: str, watch=None, **changes) -> Method:
    """A method of a YAML file with some settings changed."""
    spec = load_method(name)
    settings = spec.settings | {key: Setting(value=value) for key, value in changes.items()}
    return prepare.build(spec.model_copy(update={"settings": settings}), models, watch or Unwatched())


def lonely(context: int = 256, architecture: str = "llama", **facts) -> SimpleNamespace:
    """A pair named lonely that has a tiny target, so many positions, and no draft."""

    def session(role, watch):
        if role != "target":
            raise UserError("lonely has no draft model")
        return Session(pair(architecture)[0], role, watch)

    known = {"context": context, "vocabulary": 96, "tokenizer_hash": "abc", "device": torch.device(DEVICE)}
    known |= {"draft_device": None, "need_one_device": lambda why: None, "penalties": None}
    known |= {"constraining": None}
    return SimpleNamespace(session=session, name="lonely", **(known | facts))


def made(target=None, draft=None) -> Pair:
    """A pair named made of tiny models, with the bundled tokenizer."""
    models = dict(zip(("target", "draft"), pair("llama"), strict=True))
    return Pair("made", models | {"target": target or models["target"], "draft": draft or models["draft"]}, TOKENIZER)


def retold(file, **changes):
    """The same file of a head, with other metadata."""
    with safe_open(file, framework="pt") as opened:
        metadata = json.loads(opened.metadata()["specbench"])
    save_file(load_file(file), file, {"specbench": json.dumps({**metadata, **changes})})
