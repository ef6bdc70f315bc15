"""One sequence in llama.cpp: the cache is cut by position, and an open tree has a sequence for each leaf."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.open_tree import Tree
from specbench.engine.runtimes.static import in_chunks
from specbench.engine.runtimes.types import Chaining, Lent, Reads, Unsupported
from specbench_extras.llamacpp.branches import TRUNK, Branches
from specbench_extras.llamacpp.library import CHUNK, SEQUENCES, Context, Weights

FIRST = 512  # tokens that a new cache has room for; the room doubles as needed
FEW = 16  # sequences of a context whose first tree is opened
CLOSE = 0.2  # share of the spread of logits by which rounding moves them in the mean, and no wrong mask or place


class Saved(NamedTuple):
    ids: list[int]
    cache: npt.NDArray[np.uint8]


class LlamaRunner(Chaining):
    """A context of its own, whose sequence 0 is the text; the others are branches of the tree that is open."""

    def __init__(self, weights: Weights, threads: int) -> None:
        self.weights, self.threads = weights, threads
        self.context: Context | None = None
        self.ids: list[int] = []  # of the sequence, then of the open tree
        self.tree: Branches | None = None
        self._wiped = False

    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        if hidden or features is not None:
            raise Unsupported(
                "llama.cpp gives and takes no hidden states, and this method needs them; use --runtime static"
            )
        count = ids.shape[0]
        if count > CHUNK:
            if reads is None:
                return in_chunks(partial(LlamaRunner.forward, self), ids, keep, hidden, features, CHUNK)
            raise Unsupported(f"the llamacpp runtime feeds at most {CHUNK} tokens of a tree; use --runtime static")
        if self._wiped:
            raise RuntimeError("after logits that are not finite a sequence is cut before it goes on")
        end = len(self.ids) + count
        if reads is None:
            self._close()
            logits = self._reserve(end).compute(ids.numpy(), np.arange(len(self.ids), end), keep or count)
        else:
            context, sequences = self._branch(reads, count)
            logits = context.compute(ids.numpy(), reads.places[-count:].numpy(), keep or count, sequences)
        self.ids += ids.tolist()
        return logits, None

    def _branch(self, reads: Reads, count: int) -> tuple[Context, list[list[int]]]:
        """The context and the sequences of `count` new tokens of a tree, which begin with what they share with others.

        Raises Unsupported for what is no tree, or has more leaves than there can be sequences.
        """
        if self.tree is None:
            self.tree = Branches(reads.root, SEQUENCES)
        copies, sequences = self.tree.grow(parents(reads, count))
        context = self._reserve(len(self.ids) + count, len(self.tree.tips))
        for source, target, end in copies:
            context.share(source, target, 0, end)
        return context, sequences

    def truncate(self, length: int) -> None:
        if self.tree:
            if length > self.tree.root:
                return self.move(self.tree.root, range(length - self.tree.root))
            self._close()
        del self.ids[length:]
        if self._wiped:
            self._wiped = False
            fed, self.ids = torch.tensor(self.ids), []
            if len(fed):
                self.forward(fed, 1, (), None, None)
        elif self.context:
            self.context.cut(TRUNK, length)
        return None

    def move(self, start: int, path: Sequence[int]) -> None:
        tree, context = self.tree, self.context
        if tree is None or context is None or start < tree.root:
            raise ValueError("a path is kept of an open tree, from its root on")
        begun = start - tree.root  # tokens of the tree that come before the path and belong to it
        holder, end = tree.holder([*range(begun), *(begun + i for i in path)]), start + len(path)
        self.ids[start:] = [self.ids[start + i] for i in path]
        if holder != TRUNK:
            context.cut(TRUNK, tree.root)
            context.share(holder, TRUNK, tree.root, end)
        self._close()
        context.cut(TRUNK, end)

    def _close(self) -> None:
        """Forget the branches of the open tree."""
        if self.tree and self.context:
            for sequence in self.tree.tips:
                if sequence != TRUNK:
                    self.context.cut(sequence, 0)
        self.tree = None

    def wipe(self) -> None:
        """Forget all numbers, in place: the next `truncate` computes again what it keeps."""
        self.context, self.tree, self._wiped = None, None, True

    def save(self) -> Saved:
        assert self.context
        return Saved(self.ids.copy(), self.context.save())

    def load(self, saved: Saved) -> None:
        self._reserve(len(saved.ids)).load(saved.cache)
        self.ids = saved.ids.copy()

    def lend(self, layers: Sequence[int]) -> Lent:
        raise Unsupported("llama.cpp lends no layers of its cache, and this method needs them; use --runtime static")

    def borrow(self, lent: Lent) -> None:
        raise ValueError("models that are derived from a target run on another runtime")

    def _reserve(self, length: int, sequences: int = 1) -> Context:
        """The context, with room for `length` tokens of so many sequences; cached tokens stay."""
        old = self.context
        if old is None or length > old.capacity or sequences > old.sequences:
            capacity, most = (old.capacity, old.sequences) if old else (0, 1)
            capacity = max(FIRST, length, 2 * capacity) if length > capacity else capacity
            most = min(SEQUENCES, max(FEW, 2 * sequences)) if sequences > most else most
            self.context = Context(self.weights, capacity, most, self.threads)
            if old and self.ids:
                self.context.take(old)
        assert self.context
        return self.context


def parents(reads: Reads, count: int) -> list[int]:
    """The parents of the last `count` tokens of a tree, by what they read. Raises Unsupported if it is no tree."""
    within = reads.allowed[:, reads.root :].numpy()
    size = within.shape[1]
    found = []
    whole = bool(reads.allowed[:, : reads.root].all())
    places = reads.places[reads.root :].numpy()
    for token, row in enumerate(within, size - count):
        path = np.flatnonzero(row)
        rising = np.array_equal(places[path], reads.root + np.arange(len(path)))
        if not (whole and len(path) and path[-1] == token and rising):
            raise Unsupported(
                "llama.cpp reads chains and trees, whose tokens see their own path, and this block is neither; use "
                "--runtime static"
            )
        found.append(int(path[-2]) if len(path) > 1 else -1)
    return found


def check(runner: LlamaRunner, model: PreTrainedModel) -> None:
    """Raise Unsupported if a file has fewer tokens than the model, or does not roll back and read trees.

    The logits of a text must be the same, but for rounding, after a rollback and by a path of a tree. Rounding is not
    small: what enters a product is rounded to 8 bits, and kernels for one row add up otherwise than those for several.
    """
    vocabulary = model.config.get_text_config().vocab_size
    if runner.weights.vocabulary < vocabulary:
        raise Unsupported(
            f"the file has {runner.weights.vocabulary} tokens, and its tokenizer {vocabulary}; use --runtime static"
        )
    text = torch.tensor([(5 + 7 * i) % vocabulary for i in range(8)])
    runner.forward(text[:4], 1, (), None, None)
    expected, _ = runner.forward(text[4:], 1, (), None, None)
    runner.truncate(4)
    again, _ = runner.forward(text[4:], 1, (), None, None)
    runner.truncate(4)
    siblings = torch.arange(13, 17) % vocabulary  # before the path, so that no token's cell is its position
    tree = Tree(4)
    tree.grow([-1, -1, 0, 1, -1, 4, 5, 6])
    by_tree, _ = runner.forward(torch.cat([siblings, text[4:]]), 1, (), None, tree.reads(8, text.device))
    for actual, how in ((again, "after a rollback"), (by_tree, "by a tree")):
        if not float((actual - expected).abs().mean() / expected.std()) <= CLOSE:
            raise Unsupported(f"llama.cpp gives {type(model).__name__} other logits {how}; use --runtime static")
