"""Does a token have the same bits in every block? Tried when a model is read, on the machine's own kernels.

Models whose rows were found equal are remembered in the cache folder, by all that it depends on.
"""

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.base import environment
from specbench.base.files import write_json
from specbench.base.hashes import short_hash
from specbench.engine.models import identity
from specbench.engine.runtimes import decoder
from specbench.engine.runtimes.decoder import Cache
from specbench.engine.runtimes.lean import Lean
from specbench.engine.runtimes.types import Reads

LENGTH = 150  # tokens of the chain: longer than a span of values, and no multiple of anything
WIDTHS = (2, 3, 5, 8, 17)  # tokens that are fed at a time
NODES = 12  # of a tree
SINGLES = 40  # tokens that are fed alone; in half precision few of them show a difference
SMALL = 0.02
TYPES = (torch.float32, torch.bfloat16)  # in others, rows may differ by rounding
CHOOSING = ("ATEN_", "DNNL_", "MKL_", "OMP_", "ONEDNN_")  # how variables that choose kernels begin
MACHINE = ("cpu", "cores", "threads")  # of the environment


def promised(lean: Lean) -> bool:
    """True if a token's bits ought not to depend on its block: on a CPU, in float32 and bfloat16."""
    return lean.masks.blocks and lean.dtype in TYPES


@torch.inference_mode()
def unequal(lean: Lean) -> str:
    """What depends on the block that a token is computed in; "" if nothing does.

    One layer of each kind reads the same random states as single tokens, in blocks and as a tree, and so does the
    output layer.
    """
    kinds = {attention.window: place for place, (attention, _) in enumerate(lean.parts.layers) if attention}
    for place in kinds.values():
        if why := _layer(lean, place):
            return why
    states = _random(lean, max(WIDTHS))
    whole = lean.parts.output(states)
    for width in (1, 2, 5):
        if not same(lean.parts.output(states[:width]), whole):
            return f"the output layer rounds {width} rows otherwise than {len(states)}"
    return ""


def same(some: Tensor, all_: Tensor) -> bool:
    """True if the first rows of `all_` have the bits of `some`. Rows that are not finite or all alike tell nothing."""
    varied = bool(some.isfinite().all()) and bool((some != some[:, :1]).any())
    return varied and torch.equal(some, all_[: len(some)])


def _random(lean: Lean, count: int) -> Tensor:
    """States [count, width] so small that they do not hide, by rounding, what a layer adds to them."""
    width = lean.parts.embed(torch.zeros(1, dtype=torch.long)).shape[-1]
    return (SMALL * torch.randn(count, width, generator=torch.Generator().manual_seed(0))).to(lean.dtype)


class _Alone:
    """One layer with a cache of its own."""

    def __init__(self, lean: Lean, place: int) -> None:
        attention = lean.parts.layers[place][0]
        assert attention
        self.lean, self.place = lean, place
        shape = attention.groups, 256, attention.size
        empty = [torch.zeros(0)] * len(lean.parts.attentions)
        self.cache = Cache([*empty], [*empty])
        index = sum(other is not None for other, _ in lean.parts.layers[:place])
        for part in self.cache:
            part[index] = torch.zeros(shape, dtype=lean.cached)  # type: ignore[index]

    def __call__(self, states: Tensor, cached: int, reads: Reads | None = None) -> Tensor:
        step = self.lean.masks.block(len(states), cached, reads)
        turn = decoder.turns(self.lean.angles(256), step)
        parts, joined = self.lean.parts, None
        if parts.join:  # a head's features may be any states
            joined, states = parts.join(states, states)
        (left,) = decoder.through(parts, states, step, self.cache, turn, self.place, self.place + 1, joined=joined)
        return left


def _layer(lean: Lean, place: int) -> str:
    states, layer = _random(lean, LENGTH), _Alone(lean, place)
    whole = layer(states, 0)
    for width in WIDTHS:
        for start in _starts(width):
            part = layer(states[start : start + width], start)
            if not same(part, whole[start:]):
                return f"layer {place + 1} rounds {width} tokens after {start} otherwise than {LENGTH} at once"
    singles = range(LENGTH - SINGLES, LENGTH)
    if not same(torch.cat([layer(states[at : at + 1], at) for at in singles]), whole[singles.start :]):
        return f"layer {place + 1} rounds single tokens otherwise than {LENGTH} at once"
    return _tree(lean, layer, states)


def _starts(width: int) -> Sequence[int]:
    return 0, 61, 126, LENGTH - width


def _tree(lean: Lean, layer: _Alone, states: Tensor) -> str:
    """Every node of a tree whose paths cross a span of values, next to its path as a chain."""
    root, draw = 124, random.Random(0)
    parents = [-1, *(draw.randrange(-1, node) if node % 3 else node - 1 for node in range(1, NODES))]
    paths = [list(_path(parents, node)) for node in range(NODES)]
    allowed = torch.ones(NODES, root + NODES, dtype=torch.bool)
    allowed[:, root:] = torch.tensor([[other in path for other in range(NODES)] for path in paths])
    places = torch.tensor([*range(root), *(root + len(path) - 1 for path in paths)])
    layer(states[:root], 0)
    tree = layer(states[root : root + NODES], root, Reads(allowed, places, root))
    for node, path in enumerate(paths):
        chain = layer(states[[root + other for other in path]], root)
        if not same(chain[-1:], tree[node:]):
            return f"layer {layer.place + 1} rounds a tree's node otherwise than its path"
    return ""


def _path(parents: Sequence[int], node: int) -> Iterator[int]:
    """The ancestors of a node and itself, in rising order."""
    if parents[node] >= 0:
        yield from _path(parents, parents[node])
    yield node


def remembered(model: PreTrainedModel, tried: Callable[[], str], how: str = "") -> str:
    """What `tried` finds in a model, computed in one way; it is not called again where it has found nothing before.

    A cache folder that cannot be written is done without.
    """
    path = _file(model, how)
    if path.exists():
        return ""
    if not (found := tried()):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"rows": "equal in every block", "model": type(model).__name__})
        except OSError:
            pass
    return found


def _file(model: PreTrainedModel, how: str) -> Path:
    """A file named after the machine, torch, this package's code, and a model's form; its weights do not matter."""
    shapes = [(name, type(one.data).__name__, str(one.dtype), [*one.shape]) for name, one in model.named_parameters()]
    form = type(model).__name__, identity.configuration_hash(model.config), shapes
    digest = short_hash(json.dumps([_machine(), torch.get_num_threads(), form, how]))
    return environment.cache_folder() / f"rows-{digest}.json"


@cache
def _machine() -> tuple[object, ...]:
    facts = environment.describe(torch.device("cpu"))
    chosen = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(CHOOSING))
    code = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.glob("*.py")), Path(identity.__file__).with_name("packed.py")):
        code.update(path.read_bytes())
    return *(facts[name] for name in MACHINE), facts["versions"]["torch"], torch.__version__, chosen, code.hexdigest()
