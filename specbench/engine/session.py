"""One model with one sequence: feed tokens, keep some, roll back. A runner computes forwards and holds the cache."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config import UserError
from specbench.engine.clock import now
from specbench.engine.ids import Fed, sender
from specbench.engine.open_tree import DeviceTree, Tree
from specbench.engine.prefix import Kept, Prefixes
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.types import LAST as LAST
from specbench.engine.runtimes.types import Borrowed, Chain, Chaining, Reads, Runner, Runtime
from specbench.engine.sampling import likeliest
from specbench.engine.types import Best, NotFinite, Passed, Sampling, Scored, Watch

if TYPE_CHECKING:
    from specbench.engine.penalties import Change

UNBOUNDED = 2**31


class Unwatched:
    """A watch that records nothing."""

    def forward(self, model: str, width: int, context: int, passes: int = 1) -> AbstractContextManager[Passed]:
        return nullcontext(lambda: None)

    def saw(self, model: str, position: int, highest: Tensor) -> None:
        pass


class Session:
    """Feed tokens, roll back, catch up. Invariant: the cache holds exactly `tokens`.

    While a tree is open, `tokens` are the context, then the tree's tokens in the order in which they were fed. `keep`
    makes one path of the tree the sequence; `truncate` drops the whole tree. `role` names the model in the watch's
    records. Logits are cut to `vocabulary`. The runtime decides how forwards are computed. With `trees` False, the
    model's positions or masks are its own, and whatever is no causal chain is refused; a tree without branches is one.
    All tensors that go in and out are at `home`, by default the model's device; if that is another one, they are copied
    within the forward.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        role: str,
        watch: Watch | None = None,
        vocabulary: int | None = None,
        runtime: Runtime = EAGER,
        prefixes: Prefixes | None = None,
        trees: bool = True,
        home: torch.device | None = None,
        change: "Change | None" = None,
    ) -> None:
        self.model = model
        self.role = role
        self.change = change
        self.prompt_length: int | None = None
        self.device = home or model.device
        self._send = sender(self.device)
        self._on_host = self.device.type == "cpu"
        self._readable = self._on_host and model.dtype.itemsize >= 4  # numpy reads the logits
        self.vocabulary = vocabulary or model.config.get_text_config().vocab_size
        self._watch: Watch = watch or Unwatched()
        self.runtime = runtime
        self.prefixes = prefixes
        self.trees = trees
        self._runner = self.new_runner()
        self._states: Any = self._runner if hasattr(self._runner, "behind") else None  # it may read tokens again
        if self.device != model.device:
            from specbench.engine.runtimes.away import Away

            self._runner = Away(self._runner, model.device, self.device)
        own = type(self).forward is not Session.forward  # then the runner does not compute all that a forward does
        self._chaining = self._runner if isinstance(self._runner, Chaining) and not own else None
        self._tokens: list[int] = []
        self._fed: list[Fed] = []  # ids fed from the device that are not in `_tokens` yet
        self._length = 0
        self._tree: Tree | DeviceTree | None = None

    def new_runner(self) -> Runner:
        return self.runtime.runner(self.model)

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> list[int]:
        """The cached sequence. Ids that were fed from the device are read back first."""
        for fed in self._fed:
            self._tokens += fed.read()
        self._fed.clear()
        return self._tokens

    def restart(self, prompt: Sequence[int], keep: int = 1, hidden: Sequence[int] = ()) -> Scored:
        """Forget everything and feed a prompt; logits of its last token only [1, V], or as `forward` has them."""
        self.truncate(0)
        return self.forward(prompt, keep, hidden=hidden)

    def forward(
        self,
        tokens: Sequence[int] | Tensor,
        keep: int = 0,
        parents: Sequence[int] | Tensor | None = None,
        hidden: Sequence[int] = (),
        features: Tensor | None = None,
        together: int = 0,
    ) -> Scored:
        """Feed n tokens, a chain or (part of) a tree, and append them to the cache.

        `tokens` are host ids, or a tensor [n] on the device. Returns logits [n, V], or the last `keep` rows of them,
        and the hidden states [n, D] that `hidden` names, side by side: 0 enters the first layer, i leaves layer i, and
        LAST is what the output layer reads.

        `parents` makes the tokens a tree: for each, the index of its parent among the tree's tokens, in the order in
        which they were fed; -1 for the context. Further calls with `parents` extend the open tree. A tensor [n] on the
        device is not checked, and the host does not wait for it. `features` [n, F] are what some models read next to
        tokens. The last `together` tokens of a chain read one another in both
        directions; no earlier token reads them.
        """
        prefix_states = None
        if not self.trees and parents is not None and list(parents) == list(range(-1, len(parents) - 1)):
            parents = None  # a tree without branches
        plain = parents is None and features is None and not together
        if self._length == 0 and self.prefixes and plain and self.prefixes.fits(tokens, keep):
            prefix_states = self._load_prefix(self.prefixes, hidden)
            tokens = tokens[len(self.prefixes.tokens) :]
        ids = tokens if isinstance(tokens, Tensor) else self._send(tokens)
        width = ids.shape[0]
        with self._watched(width):
            reads = self._reads(parents, width, together) if parents is not None or together or self._tree else None
            logits, states = self._runner.forward(ids, keep, hidden, features, reads)
        self._fed_too(tokens)
        if prefix_states is not None and states is not None:
            states = torch.cat([prefix_states, states])
        if logits.shape[1] != self.vocabulary:
            logits = logits[:, : self.vocabulary]
        return self._scored(logits, states)

    def _watched(self, width: int, *passes: int) -> AbstractContextManager[Passed]:
        """The watch of a forward of `width` new tokens, and of those that a model with a state reads again."""
        behind = self._states.behind if self._states else 0
        return self._watch.forward(self.role, width + behind, self._length - behind, *passes)

    def _scored(self, logits: Tensor, states: Tensor | None) -> Scored:
        """What the model says after its last tokens, checked, and changed by penalties and a constraint."""
        best = self._check(logits)
        if not self.change:
            return Scored(logits, hidden=states, best=best)
        if self.prompt_length is None:
            self.prompt_length = self._length
        tokens, root = self.tokens, self._tree.root if self._tree else 0
        parents = self._tree.parents if self._tree else None
        changed = self.change(logits, tokens[:root], tokens[root:], parents, self.prompt_length)
        return Scored(changed, hidden=states)

    def _fed_too(self, tokens: Sequence[int] | Tensor) -> None:
        """Note that these tokens are cached now."""
        self._length += len(tokens)
        if isinstance(tokens, Tensor):
            self._fed.append(Fed(tokens))
        else:
            self.tokens.extend(tokens)

    def _check(self, logits: Tensor) -> Best | None:
        """Raise NotFinite if the highest of new logits [n, V] is not finite; on a GPU the watch checks it later.

        Returns what the check has read, if that is the likeliest token of each row.
        """
        if not self._on_host:
            self._watch.saw(self.role, self._length - logits.shape[0] + 1, logits.amax(-1))
            return None
        best = None
        # After a forward a processor's caches are cold: the fewer operations the better.
        if self._readable and logits.is_contiguous():
            best = likeliest(logits)  # a NaN counts as the highest
            finite = math.isfinite(sum(map(best.rows.item, range(len(best.tokens)), best.tokens)))
        else:
            finite = not logits.numel() or math.isfinite(highest(logits))
        if not finite:
            first = self._length - logits.shape[0] + 1
            self._runner.wipe()
            raise NotFinite(self.role, first + int((~logits.amax(-1).isfinite()).nonzero()[0]))
        return best

    def _load_prefix(self, prefixes: Prefixes, hidden: Sequence[int]) -> Tensor | None:
        """Fill the empty cache with the prefix; returns the hidden states [P, D] that `hidden` names."""
        caches, key = prefixes.kept(self.model), (self.runtime.name, *hidden)
        kept = caches.get(key)
        if kept:
            self._runner.load(kept.cache)
        if not kept or kept.length < len(prefixes.tokens):  # once a task or turn, before anything is timed
            began = now()
            new = prefixes.tokens[kept.length :] if kept else prefixes.tokens
            _, states = self._runner.forward(self._send(new), 1, hidden, None, None)
            if kept and kept.states is not None and states is not None:
                states = torch.cat([kept.states, states])
            caches[key] = kept = Kept(len(prefixes.tokens), self._runner.save(), states)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            prefixes.seconds += now() - began
        self._tokens, self._length = prefixes.tokens.copy(), len(prefixes.tokens)
        return kept.states

    def _reads(self, parents: Sequence[int] | Tensor | None, width: int, together: int) -> Reads:
        """What the next tokens read, and their positions, if they are not a causal chain. Raises UserError."""
        if not self.trees:
            kind = type(self.model).__name__
            raise UserError(
                f"{kind} reads chains only, no trees; choose a method that drafts chains, such as sps or pld"
            )
        if parents is None:
            if self._tree:
                raise ValueError("a tree is open: keep a path of it, or truncate it, before a chain is fed")
            places = torch.arange(self._length + width, device=self.device)
            allowed = places[-width:, None] >= places
            allowed[width - together :] = True
            return Reads(allowed, places, self._length)
        if isinstance(parents, Tensor) and self._on_host:
            parents = parents.tolist()
        if not self._tree:
            on_device = isinstance(parents, Tensor)
            self._tree = DeviceTree(self._length, self.device) if on_device else Tree(self._length)
        self._tree.grow(parents)  # type: ignore[arg-type]
        return self._tree.reads(len(parents), self.device)

    def lend(self, layers: Sequence[int]) -> Borrowed:
        """A copy of the tokens and of what some layers have cached, by their number among those with attention."""
        return Borrowed(self.tokens.copy(), self._runner.lend(layers))

    def adopt(self, borrowed: Borrowed) -> None:
        """Hold what another session lent, in place, as if this model's layers had read it."""
        self.truncate(0)
        self._runner.borrow(borrowed.cache)
        self._tokens, self._length = borrowed.tokens.copy(), len(borrowed.tokens)

    def catch_up(self, context: Sequence[int], hidden: Sequence[int] = ()) -> Scored:
        """Make the cache hold exactly `context`: roll back to the common prefix and feed the rest; logits [fed, V].

        `hidden` is as in `forward`. The last token is fed even if it is cached, since its logits are needed.
        """
        return self.forward(self._roll_back(context), hidden=hidden)

    def _roll_back(self, context: Sequence[int]) -> Sequence[int]:
        """Roll back to the prefix that the cache shares with `context`, in place; the tokens that follow it there."""
        if self._tree:
            self.truncate(self._tree.root)
        shared = min(common(self.tokens, context), len(context) - 1)
        self.truncate(shared)
        return context[shared:]

    def draft_chain(self, context: Sequence[int], count: int, sampling: Sampling, rng: torch.Generator) -> Chain | None:
        """Catch up with `context`, then go on by a chain of `count` tokens, each drawn, and all but the last one fed.

        All in one call of the runtime: the tokens and distributions are those of `catch_up`, then a `draw` and a
        `forward` in turn. The watch sees one forward, with the passes and tokens of all. None, and nothing is done, if
        the runtime has no chains, a forward of this session is more than the runtime's, or nothing is cached. (Nor if
        logits are changed.)
        """
        if self._chaining is None or self._length == 0 or self.change:
            return None
        unread = self._roll_back(context)
        ids = self._send(unread)
        with self._watched(len(unread) + count - 1, count) as passed:
            chain = self._chaining.chain(ids, count, self.vocabulary, sampling, rng, passed)
        if chain.ids is not None:
            self._fed_too([*unread, *chain.ids[:-1]])
        else:
            self._fed_too(unread)
            if count > 1:
                self._fed_too(chain.tokens[:-1])
        self._check(chain.logits)
        return chain

    def draft_tree(
        self, grow: Any, width: int, passes: int, logits: Tensor, states: Tensor | None, ids: Tensor | None
    ) -> tuple[Tensor, ...] | None:
        """A tree after the cached tokens, as `grow` makes it with a `level_reader.LevelReader`. The cache stays.

        All in one call of the runtime: `passes` forwards of `width` tokens, which the watch sees as one. None, and
        nothing is done, if the runtime has no such calls, a forward of this session is more than the runtime's, or
        nothing is read. (Nor if logits are changed.) `logits` [V], `states` and `ids` are as of a `LevelReader`.
        """
        run = getattr(self._chaining, "tree", None)
        if run is None or not passes or self.change:
            return None
        with self._watch.forward(self.role, passes * width, self._length, passes):
            grown: tuple[Tensor, ...] = run(grow, passes * width, self.vocabulary, logits, states, ids)
        self._check(grown[-1][None])  # a path's log-probability is not a number where logits are none
        return grown

    def truncate(self, length: int) -> None:
        """Roll the cache back to its first `length` tokens, in place. Nothing is read from the device."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot truncate {self._length} cached tokens to {length}")
        if self._tree and length > self._tree.root:
            raise ValueError(f"a tree begins at {self._tree.root}: keep a path of it, or truncate it whole")
        self._tree = None
        self.prompt_length = self.prompt_length if length else None
        self._runner.truncate(length)
        excess = self._length - max(length, len(self._tokens))
        while excess > 0:
            last = self._fed[-1]
            if last.count > excess:
                last.count -= excess
                break
            excess -= last.count
            self._fed.pop()
        del self._tokens[length:]
        self._length = length

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Keep the first `start` cached tokens and, of those after them, the ones at `path`, in place.

        `path` holds rising offsets from `start`: a path of the open tree, or the first tokens of a chain.
        """
        kept = start + len(path)
        if path and path[-1] >= len(path):  # rising offsets with a gap
            tokens = self.tokens
            tokens[start:kept] = [tokens[start + i] for i in path]
            self._runner.move(start, path)
            del tokens[kept:]
            self._length = kept
        self._tree = None
        self.truncate(kept)


def highest(logits: Tensor) -> float:
    """The highest of logits on the host; NaN if there is one."""
    if logits.dtype.itemsize >= 4:  # numpy takes a fraction of the time
        return float(logits.detach().numpy().max())
    return float(logits.amax())


def positions(model: PreTrainedModel) -> int:
    """The most tokens that a model can read; some models were made for any length."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or UNBOUNDED


def common(a: list[int], b: Sequence[int]) -> int:
    """The length of the common prefix, by bisection over slices (whose comparison is fast)."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
