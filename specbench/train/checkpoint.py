"""Where a training stands, as a file: written at once or not at all, and read back only under the same facts."""

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from specbench.config import UserError


def save_checkpoint(path: Path, facts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """`facts` (JSON-like) are all that the training depends on; `state` holds tensors and plain values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    torch.save({**state, "facts": dict(facts)}, new)
    new.replace(path)


def load_checkpoint(
    path: Path, facts: Mapping[str, Any], needed: Iterable[str] = (), device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """What was saved, tensors on the device. Raises UserError if it is damaged, or was begun under other facts."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        stored, _ = dict(state["facts"]), [state[name] for name in needed]
    except (OSError, EOFError, RuntimeError, LookupError, TypeError, ValueError, pickle.UnpicklingError) as error:
        cause = " ".join(str(error).split())[:80]
        raise UserError(f"{path} is damaged ({cause}); delete it to train anew") from None
    if differing := [key for key in {**stored, **facts} if stored.get(key) != facts.get(key)]:
        raise UserError(f"{path} was begun with other {', '.join(differing)}; delete it, or choose another --out")
    return state
