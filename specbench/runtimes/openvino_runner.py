"""One sequence in OpenVINO: a cache in blocks, where rollback is moving a length, and the inputs of a forward."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specbench.runtimes.openvino_paged import BLOCK, Paged
from specbench.runtimes.types import Reads, Unsupported

FIRST = 16  # blocks that a cache has room for at first; they double
FEW = 64  # tokens up to which the inputs of a width are made only once
LONGEST = 512  # tokens of the text by which a model is checked
TOLERANCE = 0.005  # of the spread of logits, between two ways to compute them in float32
NO_MASK = ov.Tensor(ov.Type.u8, [0])


@dataclass(frozen=True)
class Open:
    """A block that is no chain: all of it is fed again with whatever is added, as masks reach no further back."""

    root: int
    ids: Tensor  # [m]
    places: npt.NDArray[np.int64]  # [m]
    allowed: npt.NDArray[np.bool_]  # [m, m]: which of them each one reads
    features: Tensor | None  # [m, F]

    def cut(self, length: int) -> "Open":
        """Its first `length` tokens."""
        few = None if self.features is None else self.features[:length]
        return Open(self.root, self.ids[:length], self.places[:length], self.allowed[:length, :length], few)


@dataclass(frozen=True)
class Saved:
    """A copy of a sequence's cache: its first `length` tokens, in whole blocks by the name of their input."""

    length: int
    rows: dict[str, npt.NDArray[np.float32]]


class PagedRunner:
    """One sequence. Its cache belongs to it, and every compiled choice of hidden states runs on that same one."""

    def __init__(self, paged: Paged, timed: Callable[[str], AbstractContextManager[None]]) -> None:
        self.paged = paged
        self._timed = timed
        self._length = 0
        self._capacity = 0  # blocks
        self._open: Open | None = None
        self._requests: dict[tuple[int, ...], Request] = {}
        self._cache: dict[str, Any] = {}
        self._cached, self._bounds, self._blocks, self._mask_bounds = (_numbers(count) for count in (1, 2, 2, 2))
        self._context = np.zeros((), np.int32)
        self._control = {
            "past_lens": self._cached,
            "subsequence_begins": self._bounds,
            "block_indices_begins": self._blocks,
            "qq_bias_begins": self._mask_bounds,
            "max_context_len": self._context,
        }
        self._widths: dict[int, Width] = {}

    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        wanted, width = tuple(hidden), ids.shape[0]
        if reads is None:
            self._open = None
            found = self._run(ids, keep or width, wanted, features, None)
        else:
            opened = self._joined(ids, features, reads)
            self._length = opened.root
            found = self._run(opened.ids, keep or width, wanted, opened.features, opened)
            self._open = opened
        states = found[1]
        return found[0], None if states is None else states[-width:]

    def truncate(self, length: int) -> None:
        self._length = length
        if self._open:
            self._open = self._open.cut(length - self._open.root) if length > self._open.root else None

    def move(self, start: int, path: Sequence[int]) -> None:
        to = np.arange(start, start + len(path))
        of = start + np.asarray(path, np.int64)
        for tensor in self._cache.values():
            rows = tensor.data  # [blocks, heads, BLOCK, size]
            rows[to // BLOCK, :, to % BLOCK] = rows[of // BLOCK, :, of % BLOCK]
        self._length = start + len(path)
        self._open = None

    def save(self) -> "Saved":
        used = -(-self._length // BLOCK)
        return Saved(self._length, {name: tensor.data[:used].copy() for name, tensor in self._cache.items()})

    def load(self, saved: "Saved") -> None:
        self._length = 0
        self._reserve(saved.length)
        for name, rows in saved.rows.items():
            self._cache[name].data[: len(rows)] = rows
        self._length = saved.length
        self._open = None

    def _joined(self, ids: Tensor, features: Tensor | None, reads: Reads) -> Open:
        """The open block with these tokens, which read as told. Raises Unsupported for what masks here cannot say."""
        root, known = reads.root, self._length - reads.root
        old = self._open
        if known and not (old and old.root == root and len(old.ids) == known):
            raise ValueError(f"{known} tokens behind {root} were fed as a chain, and are read as a tree")
        count = known + ids.shape[0]
        places, allowed = reads.places[root:].numpy(), np.zeros((count, count), np.bool_)
        allowed[known:] = reads.allowed[:, root:].numpy()
        if old and known:
            allowed[:known, :known] = old.allowed
            ids = torch.cat([old.ids, ids])
            features = None if features is None or old.features is None else torch.cat([old.features, features])
        if np.triu(allowed, 1).any():
            raise Unsupported("the openvino runtime lets no token read one that comes later; use --runtime static")
        chain = np.array_equal(places, np.arange(root, root + count))
        if self.paged.window and root + count > self.paged.window and not chain:
            raise Unsupported(
                f"the openvino runtime feeds no trees beyond a sliding window of {self.paged.window} tokens; "
                "use --runtime static"
            )
        return Open(root, ids, places, allowed, features)

    def _run(
        self, ids: Tensor, keep: int, hidden: tuple[int, ...], features: Tensor | None, block: Open | None
    ) -> tuple[Tensor, Tensor | None]:
        """Feed tokens behind the first `_length`; logits of the last `keep`, and the hidden states of all."""
        count, start = ids.shape[0], self._length
        end = start + count
        request = self._requests.get(hidden) or self._request(hidden)
        self._reserve(end)
        self._cached[0], self._bounds[1], self._blocks[1], self._context[()] = start, count, -(-end // BLOCK), end
        width = self._widths.get(count) or self._width(count)
        width.ids[:] = ids.numpy()
        width.places[:] = width.offsets + start if block is None else block.places
        for name, tensor in width.tensors.items():
            request.bind(name, tensor)
        request.bind("rows", width.rows(keep))
        if features is not None:
            request.bind("features", ov.Tensor(features.numpy()[:, None]))
        # Of a block each token reads what is marked, and all that lies in front of the block.
        request.bind("qq_bias", NO_MASK if block is None else ov.Tensor(block.allowed.astype(np.uint8).ravel()))
        self._mask_bounds[1] = 0 if block is None else count * count
        request.made.infer()
        self._length = end
        logits = request.output(0).clone()
        if not hidden:
            return logits, None
        return logits, torch.cat([request.output(i) for i in self.paged.outputs(hidden)], -1)

    def _request(self, hidden: tuple[int, ...]) -> "Request":
        with self._timed("compile"):
            request = Request(self.paged.compiled(hidden))
        for name, array in self._control.items():
            request.bind(name, _shared(array))
        self._requests[hidden] = request
        self._bind(request)
        return request

    def _reserve(self, length: int) -> None:
        """Make room for so many tokens, in place; what is cached stays."""
        blocks = -(-length // BLOCK)
        if blocks <= self._capacity:
            return
        used, self._capacity = -(-self._length // BLOCK), max(FIRST, 2 * self._capacity, blocks)
        for name, form in self.paged.forms.items():
            grown = ov.Tensor(ov.Type.f32, [self._capacity, *form])
            grown.data[used:] = 0
            if used:
                grown.data[:used] = self._cache[name].data[:used]
            self._cache[name] = grown
        for request in self._requests.values():
            self._bind(request)

    def _bind(self, request: "Request") -> None:
        for name, tensor in self._cache.items():
            request.bind(name, tensor)
        request.bind("block_indices", ov.Tensor(np.arange(self._capacity, dtype=np.int32)))

    def _width(self, count: int) -> "Width":
        made = Width(count)
        if count <= FEW:
            self._widths[count] = made
        return made


class Request:
    """A compiled model and its inputs. Where one stays the same tensor, nothing is checked or set up anew."""

    def __init__(self, compiled: Any) -> None:
        self.made = compiled.create_infer_request()
        self._bound: dict[str, Any] = {}

    def bind(self, name: str, tensor: Any) -> None:
        if self._bound.get(name) is not tensor:
            self._bound[name] = tensor
            self.made.set_tensor(name, tensor)

    def output(self, index: int) -> Tensor:
        """An output [n, ...], which the next forward overwrites."""
        return torch.from_numpy(self.made.get_output_tensor(index).data[:, 0])


class Width:
    """The inputs of a forward of so many tokens, which are written in place."""

    def __init__(self, count: int) -> None:
        self.ids, self.places, self.offsets = np.zeros(count, np.int64), np.zeros(count, np.int64), np.arange(count)
        self.tensors = {"input_ids": _shared(self.ids), "position_ids": _shared(self.places)}
        self._rows: dict[int, Any] = {}

    def rows(self, keep: int) -> Any:
        """Indices of the last `keep` tokens."""
        if keep not in self._rows:
            self._rows[keep] = ov.Tensor(self.offsets[-keep:].copy())
        return self._rows[keep]


def _numbers(count: int) -> npt.NDArray[np.int32]:
    return np.zeros(count, np.int32)


def _shared(array: npt.NDArray[Any]) -> Any:
    """A tensor over an array, which must outlive its use."""
    return ov.Tensor(array, shared_memory=True)


@torch.inference_mode()
def check(paged: Paged, model: PreTrainedModel, runner: PagedRunner) -> None:
    """Raise Unsupported if a compiled model gives other logits than the model: a text beyond its sliding window.

    It is read in three parts, of which one is fed anew behind a rollback. A window of more than LONGEST is not crossed.
    """
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None) or LONGEST
    count = min(LONGEST, most, paged.window + 24)
    ids = torch.arange(7, 7 + 11 * count, 11) % config.vocab_size
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(count, paged.features, generator=rng) if paged.features else None
    told = {} if features is None else {"features": features[None]}
    expected = model(ids[None], past_key_values=DynamicCache(), return_dict=True, **told).logits[0, -8:]

    def feed(first: int, last: int) -> Tensor:
        beside = None if features is None else features[first:last]
        return runner.forward(ids[first:last], 0, (), beside, None)[0]

    kind = type(model).__name__
    try:
        feed(0, count - 8)
        feed(count - 8, count - 2)
        runner.truncate(count - 8)
        found = torch.cat([feed(count - 8, count - 1), feed(count - 1, count)])
        runner.truncate(0)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-160:]
        raise Unsupported(f"OpenVINO cannot run {kind} ({reason}); use --runtime static") from None
    there = expected.isfinite()
    spread = float(expected[there].std()) or 1.0
    off = float((found - expected)[there].abs().max())
    if not off <= TOLERANCE * spread or not torch.equal(found.isfinite(), there):
        raise Unsupported(
            f"OpenVINO computes other logits for {kind} (off by {off / spread:.2g} of their spread); "
            "use --runtime static"
        )
