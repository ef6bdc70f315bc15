"""Which models' rows were found equal on this machine, kept in the cache folder by all that it depends on."""

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from transformers import PreTrainedModel

from specbench.base import environment
from specbench.base.files import write_json
from specbench.base.hashes import short_hash
from specbench.engine.models.identity import configuration_hash

CHOOSING = ("ATEN_", "DNNL_", "MKL_", "OMP_", "ONEDNN_")  # how variables that choose kernels begin
MACHINE = ("cpu", "cores", "threads")  # of the environment


def remembered(model: PreTrainedModel, tried: Callable[[], str]) -> str:
    """What `tried` finds in a model; it is not called again where it has found nothing, "", before.

    A cache folder that cannot be written is done without.
    """
    path = _path(model)
    if path.exists():
        return ""
    if not (found := tried()):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"rows": "equal in every block", "model": type(model).__name__})
        except OSError:
            pass
    return found


def _path(model: PreTrainedModel) -> Path:
    """A file named after the machine, torch, this package's code, and a model's form; its weights do not matter."""
    shapes = [(name, type(one.data).__name__, str(one.dtype), [*one.shape]) for name, one in model.named_parameters()]
    form = type(model).__name__, configuration_hash(model.config), shapes
    digest = short_hash(json.dumps([_machine(), torch.get_num_threads(), form]))
    return environment.cache_folder() / f"rows-{digest}.json"


@cache
def _machine() -> tuple[object, ...]:
    facts = environment.describe(torch.device("cpu"))
    chosen = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(CHOOSING))
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return *(facts[name] for name in MACHINE), facts["versions"]["torch"], torch.__version__, chosen, code.hexdigest()
