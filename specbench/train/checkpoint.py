"""Where a training stands, as a file: written at once or not at all, and read back only under the same facts."""

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from specbench import files
from specbench.config import UserError
from specbench.pickles import read_pickle
from specbench.untrusted import brief


def save_checkpoint(path: Path, facts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """`facts` (JSON-like) are all that the training depends on; `state` holds tensors and plain values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = io.BytesIO()  # torch's own writer makes a RuntimeError of what the disk refuses
    torch.save({**state, "facts": dict(facts)}, saved)
    with files.whole(path) as new:
        new.write_bytes(saved.getbuffer())


def load_checkpoint(
    path: Path, facts: Mapping[str, Any], needed: Iterable[str] = (), device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """What was saved, tensors on the device. Raises UserError if it is damaged, or was begun under other facts."""
    state = read_pickle(path, device, "delete it to train anew")
    try:
        stored, _ = dict(state["facts"]), [state[name] for name in needed]
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({brief(error)}); delete it to train anew") from None
    if differing := [key for key in {**stored, **facts} if stored.get(key) != facts.get(key)]:
        raise UserError(f"{path} was begun with other {', '.join(differing)}; delete it, or choose another --out")
    return state
