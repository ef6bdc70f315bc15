"""The checkpoint of a training: a file that is written whole or not at all, and read only under the same facts."""

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from specbench.base import files
from specbench.base.pickles import read_pickle
from specbench.base.untrusted import brief
from specbench.config import UserError


def save_checkpoint(path: Path, facts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write `state`, tensors and plain values; `facts` (JSON-like) are all that the training depends on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = io.BytesIO()  # torch's own writer turns errors of the disk into RuntimeError
    torch.save({**state, "facts": dict(facts)}, saved)
    with files.whole(path) as new:
        new.write_bytes(saved.getbuffer())


def load_checkpoint(
    path: Path, facts: Mapping[str, Any], needed: Iterable[str] = (), device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """What was saved, tensors on the device. Raises UserError if it is damaged or was begun under other facts."""
    state = read_pickle(path, device, "delete it to train again")
    try:
        stored, _ = dict(state["facts"]), [state[name] for name in needed]
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({brief(error)}); delete it to train again") from None
    if differing := [key for key in {**stored, **facts} if stored.get(key) != facts.get(key)]:
        raise UserError(f"{path} was begun with different {', '.join(differing)}; delete it, or choose another --out")
    return state
