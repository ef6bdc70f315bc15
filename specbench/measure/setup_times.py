"""Seconds that a run spends outside of decoding, kept in its `apart.json`."""

from pathlib import Path

from specbench.base.folder import member
from specbench.base.untrusted import read_json
from specbench.config import UserError
from specbench.engine.models.pair import Pair


def setup_seconds(pair: Pair) -> dict[str, float]:
    """Seconds spent so far on exports, compilations, captures, what methods do besides, and shared prefixes."""
    return {**pair.runtime.seconds, **pair.seconds, "prefix": pair.prefixes.seconds}


def add_setup_seconds(folder: Path, pair: Pair, before: dict[str, float]) -> None:
    """Add the seconds that were spent since `before` to the run's `apart.json`."""
    path = member(folder, "apart.json")
    try:
        stored = read_json(path) if path.folder.has(path.name) else {}
    except UserError:  # a damaged file is worth no more than the seconds in it
        stored = {}
    items = stored.items() if isinstance(stored, dict) else ()
    earlier = {what: seconds for what, seconds in items if isinstance(seconds, float)}
    now = setup_seconds(pair)
    total = {what: earlier.get(what, 0.0) + seconds - before.get(what, 0.0) for what, seconds in now.items()}
    path.folder.write_json(path.name, earlier | total)
