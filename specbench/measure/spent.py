"""Where the time of a run went, in seconds of its `apart.json`: what is outside of decoding, and the parts of all.

Exports, compilations, captures and what methods do besides decoding have names of their own there and are no part of
any measured time. PARTS add up to `total`, but for the rest: records, checks, and what happens between texts.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specbench.base.folder import member
from specbench.engine.clock import now
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.states import counted
from specbench.results.spent import FILE, read_seconds


class Spent(dict[str, float]):
    """Seconds by what they were spent on."""

    def add(self, what: str, seconds: float) -> None:
        self[what] = self.get(what, 0.0) + seconds

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count the seconds of the block, also if it fails."""
        began = now()
        try:
            yield
        finally:
            self.add(what, now() - began)

    def add_texts(self, rows: Iterable[tuple[dict[str, Any], Any]], seconds: float) -> None:
        """Count the seconds in which texts were decoded; their samples tell how many of them were prefill."""
        prefill = sum(sample.get("prefill_seconds") or 0.0 for sample, _ in rows)
        self.add("prefill", prefill)
        self.add("decoding", seconds - prefill)


def setup_seconds(pair: Pair) -> dict[str, float]:
    """Seconds spent so far on exports, compilations, captures, what methods do besides, and shared prefixes.

    And what rollbacks of models with a state cost, within decoding.
    """
    return {**pair.runtime.seconds, **pair.seconds, "prefix": pair.prefixes.seconds, **counted(pair.models.values())}


def since(pair: Pair, before: Mapping[str, float]) -> dict[str, float]:
    """The seconds of `setup_seconds` that were spent after `before`."""
    return {what: seconds - before.get(what, 0.0) for what, seconds in setup_seconds(pair).items()}


def add_seconds(folder: Path, seconds: Mapping[str, float]) -> None:
    """Add seconds to those that earlier calls of the run wrote."""
    path = member(folder, FILE)
    earlier = read_seconds(path)
    path.folder.write_json(FILE, earlier | {what: earlier.get(what, 0.0) + more for what, more in seconds.items()})
