"""The traces of many samples in few bytes, for the HTML page; page.js reads them.

The bytes are gzip of: the header's length (4 bytes, little-endian), the header (JSON), then the streams that it lists,
each of unsigned numbers with 7 bits a byte, the lowest first (LEB128). Texts are numbers into the header's `texts`,
ordered by how often they occur; ratios and times likewise into `notes`.
"""

import gzip
from array import array
from typing import Any

import numpy as np

from specbench.analysis.trace import ORIGINS, Step, Trace, ratio_text
from specbench.base.files import json_text

CODES = {origin: i for i, origin in enumerate(ORIGINS)}
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
    """Collects traces, then packs them."""

    def __init__(self) -> None:
        self._streams = {name: array("L") for name in STREAMS}
        self._tables: dict[str, dict[str, int]] = {"texts": {"": 0}, "notes": {"": 0}}

    def add(self, trace: Trace) -> int:
        """Add a trace; returns its place among them."""
        self._streams["steps"].append(len(trace.steps))
        for step in trace.steps:
            self._add(step)
        return len(self._streams["steps"]) - 1

    def packed(self, header: dict[str, Any]) -> bytes:
        """All traces, after the page's header."""
        numbers = {name: np.frombuffer(v, dtype=f"u{v.itemsize}").astype(int) for name, v in self._streams.items()}
        for kind, table in self._tables.items():
            names = [name for name, of in STREAMS.items() if of == kind]
            often = np.zeros(len(table), dtype=int)
            for name in names:
                often += np.bincount(numbers[name], minlength=len(table))
            order = np.argsort(-often, kind="stable")
            rank = np.argsort(order, kind="stable")
            texts = list(table)
            header = header | {kind: [texts[i] for i in order]}
            numbers |= {name: rank[numbers[name]] for name in names}
        coded = {name: _leb128(values) for name, values in numbers.items()}
        header = header | {"origins": ORIGINS, "more": MORE, "streams": {name: len(b) for name, b in coded.items()}}
        head = json_text(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        return gzip.compress(len(head).to_bytes(4, "little") + head + b"".join(coded.values()), 7, mtime=0)

    def _put(self, stream: str, text: str) -> None:
        """Append a text to a stream, as its number in the stream's table."""
        table = self._tables[STREAMS[stream]]
        self._streams[stream].append(table.setdefault(text, len(table)))

    def _add(self, step: Step) -> None:
        streams, pieces = self._streams, step.pieces
        streams["size"].append(len(pieces))
        streams["drafted"].append(step.drafted)
        self._put("time", milliseconds(step.seconds))
        for piece in pieces:
            self._put("text", piece.text)
            more = bool(piece.cut) or piece.origin == "rescued"
            streams["origin"].append(CODES[piece.origin] + MORE * more)
            if more:
                self._put("cut", piece.cut)
                self._put("instead", piece.instead)
                self._put("ratio", ratio_text(piece.ratio))
        if step.drafted:
            streams["dropped"].extend((len(step.rejected), len(step.unread), len(step.cut)))
            for draft in step.rejected:
                self._put("rejected", draft.text)
                self._put("own", draft.target)
                self._put("rejected_ratio", ratio_text(draft.ratio))
            for text in step.unread:
                self._put("unread", text)
            for text in step.cut:
                self._put("after", text)


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
