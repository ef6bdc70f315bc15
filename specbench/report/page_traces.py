"""The traces of many samples in few bytes, for the HTML page; page.js reads them.

The bytes are gzip of: the header's length (4 bytes, little-endian), the header (JSON), then the streams that it lists,
each of unsigned numbers with 7 bits a byte, the lowest first (LEB128). Texts are numbers into the header's `texts`,
ordered by how often they occur; ratios and times likewise into `notes`.
"""

import gzip
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.trace import ORIGINS, ratio_text
from specbench.analysis.trace_columns import TraceColumns, Words
from specbench.base.files import json_text

Streams = Mapping[str, NDArray[np.int32]]
MORE = 8  # added to an origin whose piece also has cut, instead and ratio
# The streams, and the table that their numbers point into; none for plain numbers.
STREAMS = {
    "steps": "",  # of a sample
    "size": "",  # pieces of a step
    "drafted": "",
    "time": "notes",
    "text": "texts",  # of a piece
    "origin": "",
    "cut": "texts",
    "instead": "texts",
    "ratio": "notes",
    "dropped": "",  # three for each drafting step: rejected, unread, cut
    "rejected": "texts",
    "own": "texts",  # what the target preferred to the rejected draft
    "rejected_ratio": "notes",
    "unread": "texts",
    "after": "texts",
}


class Encoder:
    """Makes streams of traces, whose texts are numbers of `words`, and packs them."""

    def __init__(self, words: Words) -> None:
        self._tables = {"texts": words, "notes": Words()}

    def streams(self, traces: TraceColumns) -> Streams:
        """The streams of some traces."""
        return {
            "steps": traces.rounds,
            "size": traces.pieces,
            "drafted": traces.drafted,
            "time": self._notes(map(milliseconds, traces.seconds.tolist())),
            "text": traces.text,
            "origin": traces.origin + MORE * traces.more,
            "cut": traces.cut,
            "instead": traces.instead,
            "ratio": self._notes(map(ratio_text, traces.ratio.tolist())),
            "dropped": traces.dropped,
            "rejected": traces.rejected,
            "own": traces.own,
            "rejected_ratio": self._notes(map(ratio_text, traces.rejected_ratio.tolist())),
            "unread": traces.unread,
            "after": traces.after,
        }

    def packed(self, header: dict[str, Any], parts: Sequence[Streams]) -> bytes:
        """The traces of all parts, after the page's header."""
        numbers = {name: np.concatenate([np.zeros(0, np.int32), *(part[name] for part in parts)]) for name in STREAMS}
        for kind, words in self._tables.items():
            names = [name for name, of in STREAMS.items() if of == kind]
            often = np.zeros(len(words.texts), dtype=int)
            for name in names:
                often += np.bincount(numbers[name], minlength=len(often))
            order = np.argsort(-often, kind="stable")
            rank = np.argsort(order, kind="stable")
            header = header | {kind: [words.texts[i] for i in order[: np.count_nonzero(often)]]}
            numbers |= {name: rank[numbers[name]] for name in names}
        coded = {name: _leb128(values) for name, values in numbers.items()}
        header = header | {"origins": ORIGINS, "more": MORE, "streams": {name: len(b) for name, b in coded.items()}}
        head = json_text(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        return gzip.compress(len(head).to_bytes(4, "little") + head + b"".join(coded.values()), 7, mtime=0)

    def _notes(self, notes: Iterable[str]) -> NDArray[np.int32]:
        return np.fromiter(map(self._tables["notes"].number, notes), np.int32)


def milliseconds(seconds: float) -> str:
    """A time in a few characters; empty where it is not known."""
    value = 1000 * seconds
    return "" if value != value else f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _leb128(values: np.ndarray) -> bytes:
    """Numbers below 2^28 as LEB128."""
    length = 1 + (values >= 1 << 7).astype(int) + (values >= 1 << 14) + (values >= 1 << 21)
    ends = np.cumsum(length)
    coded = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    for k in range(4):
        long = length > k
        coded[(ends - length)[long] + k] = ((values[long] >> (7 * k)) & 127) | ((length[long] > k + 1) << 7)
    return coded.tobytes()
