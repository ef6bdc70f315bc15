"""One sequence in OpenVINO: a cache in blocks, and the inputs of a forward. A rollback only sets a length."""

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

from specbench.engine.runtimes.reference import off
from specbench.engine.runtimes.types import Chain, Chaining, Lent, Reads, Unsupported
from specbench.engine.sampling import leads, probabilities, waits
from specbench.engine.types import Passed, Sampling
from specbench_extras.openvino.paged import BLOCK, Paged
from specbench_extras.openvino.request import Request, Width, numbers, shared
from specbench_extras.openvino.step import Kind, Shape, StepRequest

FIRST = 16  # blocks that a new cache has room for; the room doubles as needed
FEW = 64  # up to so many tokens, the inputs of a width are made only once
LONGEST = 512  # tokens of the text that checks a model
TOLERANCE = 0.005  # share of the spread of logits by which two computations in float32 may differ
NO_MASK = ov.Tensor(ov.Type.u8, [0])


@dataclass(frozen=True)
class OpenBlock:
    """A block that is not a chain. When tokens are added, all of it is fed again, since a mask covers only one call."""

    root: int
    ids: Tensor  # [m]
    places: npt.NDArray[np.int64]  # [m]: positions
    allowed: npt.NDArray[np.bool_]  # [m, m]: which of the m tokens each one reads
    features: Tensor | None  # [m, F]

    def cut(self, length: int) -> "OpenBlock":
        """Its first `length` tokens."""
        features = None if self.features is None else self.features[:length]
        return OpenBlock(self.root, self.ids[:length], self.places[:length], self.allowed[:length, :length], features)


@dataclass(frozen=True)
class Saved:
    """A copy of a sequence's cache: its first `length` tokens, in whole blocks, by the name of their input."""

    length: int
    rows: dict[str, npt.NDArray[np.float32]]


class PagedRunner(Chaining):
    """One sequence with its cache, which all compiled models (one for each choice of hidden states) share."""

    def __init__(self, paged: Paged, timed: Callable[[str], AbstractContextManager[None]]) -> None:
        self.paged = paged
        self._timed = timed
        self._length = 0
        self._capacity = 0  # blocks
        self._open: OpenBlock | None = None
        self._requests: dict[tuple[int, ...] | Shape, Request] = {}  # by hidden states, or of a form for one shape
        self._steps: dict[Kind, StepRequest] = {}
        self._cache: dict[str, Any] = {}
        self._cached, self._bounds, self._blocks, self._mask_bounds = (numbers(count) for count in (1, 2, 2, 2))
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
            logits, states = self._run(ids, keep or width, wanted, features, None)
        else:
            block = self._extended(ids, features, reads)
            self._length = block.root
            logits, states = self._run(block.ids, keep or width, wanted, block.features, block)
            self._open = block
        return logits, None if states is None else states[-width:]

    @torch.inference_mode()
    def chain(
        self,
        ids: Tensor,
        count: int,
        vocabulary: int,
        sampling: Sampling,
        rng: torch.Generator,
        passed: Passed = lambda: None,
    ) -> Chain:
        if not self.paged.small or sampling.cuts:  # steps know no cuts
            return super().chain(ids, count, vocabulary, sampling, rng, passed)
        self._open = None
        kind = Kind(vocabulary, not sampling.greedy)
        step = self._steps.get(kind) or self._step(kind)
        tokens, rows = np.empty(count, np.int64), np.empty((count, vocabulary), np.float32)
        like = torch.empty(1, vocabulary)
        fed = ids.numpy()
        for at in range(count):
            if kind.drawn:
                step.lead[:] = leads(waits(like, rng), sampling).numpy()
            if len(fed) == 1:
                self._set_inputs(step, fed, 1)
                step.infer()
                self._length += 1
                tokens[at], rows[at] = step.token[0], step.logits[0]
            else:
                logits, _ = self.forward(ids, 1, (), None, None)
                rows[at] = logits[0, :vocabulary].numpy()
                tokens[at] = (rows[at] + step.lead[0]).argmax()
            fed = tokens[at : at + 1]
        logits = torch.from_numpy(rows)
        probs = None if sampling.greedy else probabilities(logits, sampling)
        return Chain(torch.from_numpy(tokens), logits, probs, tokens.tolist())

    def truncate(self, length: int) -> None:
        self._length = length
        if self._open:
            self._open = self._open.cut(length - self._open.root) if length > self._open.root else None

    def move(self, start: int, path: Sequence[int]) -> None:
        target = np.arange(start, start + len(path))
        source = start + np.asarray(path, np.int64)
        for tensor in self._cache.values():
            rows = tensor.data  # [blocks, heads, BLOCK, size]
            rows[target // BLOCK, :, target % BLOCK] = rows[source // BLOCK, :, source % BLOCK]
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

    def lend(self, layers: Sequence[int]) -> Lent:
        def copied(name: str) -> Tensor:
            rows = self._cache[name].data[: -(-self._length // BLOCK)]  # [blocks, heads, BLOCK, size]
            whole = np.ascontiguousarray(rows.transpose(1, 0, 2, 3)).reshape(rows.shape[1], -1, rows.shape[3])
            return torch.from_numpy(whole)[:, : self._length].clone()

        return [(copied(f"key_cache.{index}"), copied(f"value_cache.{index}")) for index in layers]

    def borrow(self, lent: Lent) -> None:
        raise ValueError("models that are derived from a target run on another runtime")

    def _extended(self, ids: Tensor, features: Tensor | None, reads: Reads) -> OpenBlock:
        """The open block with these tokens added. Raises Unsupported for reads that masks here cannot express."""
        root, cached = reads.root, self._length - reads.root
        old = self._open
        if cached and not (old and old.root == root and len(old.ids) == cached):
            raise ValueError(f"{cached} tokens after {root} were fed as a chain, and are read as a tree")
        count = cached + ids.shape[0]
        places, allowed = reads.places[root:].numpy(), np.zeros((count, count), np.bool_)
        allowed[cached:] = reads.allowed[:, root:].numpy()
        if old and cached:
            allowed[:cached, :cached] = old.allowed
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
        return OpenBlock(root, ids, places, allowed, features)

    def _run(
        self, ids: Tensor, keep: int, hidden: tuple[int, ...], features: Tensor | None, block: OpenBlock | None
    ) -> tuple[Tensor, Tensor | None]:
        """Feed tokens after the first `_length`; returns logits of the last `keep`, and the hidden states of all."""
        form: tuple[int, ...] | Shape = hidden
        if block is None and not hidden and features is None:
            shape, shapes = Shape(ids.shape[0], keep), self.paged.shapes
            if shape in shapes.fixed:
                form = shape
            else:
                shapes.saw(shape)
        request = self._requests.get(form) or self._request(form)
        self._set_inputs(request, ids.numpy(), keep, block)
        if features is not None:
            request.bind("features", ov.Tensor(features.float().numpy()[:, None]))
        request.infer()
        self._length += ids.shape[0]
        logits = request.output(0).clone()
        if not hidden:
            return logits, None
        return logits, torch.cat([request.output(i) for i in self.paged.outputs(hidden)], -1).to(self.paged.dtype)

    def _set_inputs(
        self, request: Request, ids: npt.NDArray[np.int64], keep: int, block: OpenBlock | None = None
    ) -> None:
        """Bind and write what a request reads when tokens [n] are fed after the first `_length`."""
        count, start = len(ids), self._length
        end = start + count
        self._reserve(end)
        self._cached[0], self._bounds[1], self._blocks[1], self._context[()] = start, count, -(-end // BLOCK), end
        width = self._widths.get(count) or self._width(count)
        width.ids[:] = ids
        width.places[:] = width.offsets + start if block is None else block.places
        for name, tensor in width.tensors.items():
            request.bind(name, tensor)
        request.bind("rows", width.rows(keep))
        # A token of an open block reads the tokens marked in `allowed`, and all tokens before the block.
        request.bind("qq_bias", NO_MASK if block is None else ov.Tensor(block.allowed.astype(np.uint8).ravel()))
        self._mask_bounds[1] = 0 if block is None else count * count

    def _request(self, form: tuple[int, ...] | Shape) -> Request:
        with self._timed("compile"):
            compiled = self.paged.of_shape(form) if isinstance(form, Shape) else self.paged.compiled(form)
            request = self._requests[form] = Request(compiled)
        self._prepare(request)
        return request

    def _step(self, kind: Kind) -> StepRequest:
        with self._timed("compile"):
            request = self._steps[kind] = StepRequest(self.paged.step(kind), kind)
        self._prepare(request)
        return request

    def _prepare(self, request: Request) -> None:
        """Give a new request the inputs that stay."""
        for name, array in self._control.items():
            request.bind(name, shared(array))
        self._bind(request)

    def _reserve(self, length: int) -> None:
        """Make room for `length` tokens, in place; cached tokens stay."""
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
        for request in (*self._requests.values(), *self._steps.values()):
            self._bind(request)

    def _bind(self, request: Request) -> None:
        for name, tensor in self._cache.items():
            request.bind(name, tensor)
        request.bind("block_indices", ov.Tensor(np.arange(self._capacity, dtype=np.int32)))

    def _width(self, count: int) -> Width:
        width = Width(count)
        if count <= FEW:
            self._widths[count] = width
        return width


@torch.inference_mode()
def check(paged: Paged, model: PreTrainedModel, runner: PagedRunner) -> None:
    """Raise Unsupported if a compiled model gives other logits than the model, on a text longer than its window.

    The text is read in three parts, one of which is fed again after a rollback. It has at most LONGEST tokens, even if
    the window is wider.
    """
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None) or LONGEST
    count = min(LONGEST, most, paged.window + 24)
    ids = torch.arange(7, 7 + 11 * count, 11) % config.vocab_size
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(count, paged.features, generator=rng) if paged.features else None
    arguments = {} if features is None else {"features": features[None]}
    expected = model(ids[None], past_key_values=DynamicCache(), return_dict=True, **arguments).logits[0, -8:]

    def feed(first: int, last: int) -> Tensor:
        part = None if features is None else features[first:last]
        return runner.forward(ids[first:last], 0, (), part, None)[0]

    kind = type(model).__name__
    try:
        feed(0, count - 8)
        feed(count - 8, count - 2)
        runner.truncate(count - 8)
        actual = torch.cat([feed(count - 8, count - 1), feed(count - 1, count)])
        runner.truncate(0)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-160:]
        raise Unsupported(f"OpenVINO cannot run {kind} ({reason}); use --runtime static") from None
    difference = off(actual, expected)
    if not difference <= TOLERANCE:
        raise Unsupported(
            f"OpenVINO computes other logits for {kind} (off by {difference:.2g} of their spread); use --runtime static"
        )
