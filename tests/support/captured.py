"""Runtimes that capture, where there is no GPU by a stand-in; and heads of every kind that drafts in captured work."""

import collections
import copy
import weakref

import other_device
import tiny_blocks
import tiny_heads
import torch
from gates import DEVICE, lively_prompt, pair
from weights import stored

from specbench.engine import ids
from specbench.engine.models.eagle_head import layers_read, stored_settings
from specbench.engine.models.heads import Head
from specbench.engine.models.mtp import new_modules
from specbench.engine.models.mtp_head import as_head
from specbench.engine.ranked_trees import best_paths, ranked_tree
from specbench.engine.runtimes.fixed import WARM_UP, Fixed
from specbench.engine.runtimes.graph import Graph
from specbench.engine.runtimes.types import Runtime
from specbench.engine.session import LAST, Session, Unwatched
from specbench.engine.types import Method, Sampling
from specbench.methods.blocks.dflash import BlockDrafter, DFlash, block_head
from specbench.methods.heads.eagle import feature_head
from specbench.methods.heads.eagle3 import Eagle3, EagleDrafter, eagle_head
from specbench.methods.heads.hydra import HydraDrafter, hydra_heads
from specbench.methods.heads.medusa import Medusa, MedusaDrafter, medusa_heads, of_file
from specbench.methods.heads.mtp import Mtp
from specbench.training.recipe import load_recipe
from specbench_extras.eagle.fit import first_head
from specbench_extras.medusa import hydra
from specbench_extras.medusa import train as medusa
from specbench_extras.medusa.fit import first_heads
from specbench_extras.medusa.recipe import DraftHeadsRecipe

HERE = torch.device(DEVICE)


class Pool:
    """Memory of graphs; as CUDA's, it is not to be had again once the last of its graphs has gone."""

    def __init__(self) -> None:
        self.graphs: weakref.WeakSet[Replayed] = weakref.WeakSet()


class Replayed:
    """In place of a CUDA graph: computes the step again into the tensors that the capture gave, as a replay does."""

    def __init__(self, step: Fixed, pool: "Pool") -> None:
        self.step, self._pool = weakref.ref(step), pool  # a graph keeps nothing alive but its memory
        pool.graphs.add(self)

    def pool(self) -> "Pool":
        return self._pool

    def replay(self) -> None:
        launches = other_device.launches.copy()
        step = self.step()
        for known, result in zip(step.outputs, step.compute(), strict=True):
            if known is not None:
                known.copy_(result)
        other_device.launches.clear()
        other_device.launches.update(launches)
        other_device.launches["a graph"] += 1


def stand_in(step: Fixed, pool: Pool | None) -> None:
    assert pool is None or pool.graphs, "the pool has gone"
    for _ in range(WARM_UP):
        step.compute()
    step.outputs = step.compute()
    step.graph = Replayed(step, pool or Pool())


def capturing(monkeypatch, device: torch.device = HERE) -> Graph:
    """A runtime that captures; by the stand-in where there is no GPU."""
    if device.type == "cuda":
        return Graph(device)
    monkeypatch.setattr(Fixed, "capture", stand_in)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    runtime = Graph(device, captures=False)
    runtime.captures = True
    return runtime


KINDS = ("eagle3", "eagle", "medusa", "hydra", "dflash", "dflare", "mtp")
LEARNED = ("eagle3", "dflash", "dflare")  # from a text of the tiny model; others have random weights
RANKED = {
    "medusa": (medusa.new_heads, medusa_heads, MedusaDrafter),
    "hydra": (hydra.new_heads, hydra_heads, HydraDrafter),
}
ACCURACIES = [[0.61, 0.17, 0.07], [0.53, 0.19, 0.11], [0.43, 0.13, 0.05]]


def headed(kind: str, target, runtime: Runtime, architecture: str = "llama", total: int = 16, depth: int = 3) -> Method:
    """A method with a head on the device of `target`, a copy of the tiny model."""
    session = Session(target, "target", runtime=runtime)
    if kind == "eagle3":
        head = eagle_head(tiny_heads.in_file(tiny_heads.trained(architecture, 12)), target, 96)
        return Eagle3(session, EagleDrafter(head, drafts(head, runtime), layers_read(target), total, 4, depth), {})
    if kind == "eagle":
        made = first_head(pair(architecture)[0], 96, "fc", 0)
        facts = {"fuse": "fc", "config": stored_settings(made.config)}
        head = feature_head(Head(kind, stored(made), facts), target, 96)
        return Eagle3(session, EagleDrafter(head, drafts(head, runtime), LAST, total, 4, depth), {})
    if kind in ("medusa", "hydra"):
        new, of_tensors, drafter = RANKED[kind]
        recipe = DraftHeadsRecipe(**load_recipe(kind, []).values | {"heads": 3, "layers": 2})
        made = first_heads(new, pair(architecture)[0], recipe, 0)
        head = of_file(Head(kind, stored(made), {"accuracies": ACCURACIES}), target, of_tensors)[0]
        tree = ranked_tree(best_paths(ACCURACIES, 9), target.device)
        return Medusa(session, drafter(head, tree, 96, Unwatched(), runtime), {})
    if kind == "mtp":
        head = as_head(random_module(pair(architecture)[0], target.device), 96)
        drafter = EagleDrafter(head, drafts(head, runtime), LAST, depth + 2, 1, depth)
        return Mtp(session, drafter, depth + 1, {})
    head = block_head(tiny_blocks.in_file(tiny_blocks.trained(architecture, 12, kind)), target)
    return DFlash(session, BlockDrafter(head, drafts(head, runtime), 5, "likeliest"), {})


def random_module(target, device: torch.device = HERE):
    """A module of MTP whose norms do something, in the type of a target that is not moved."""
    rng = torch.Generator().manual_seed(5)
    made = new_modules(copy.deepcopy(target).cpu())
    with torch.no_grad():
        for name, weight in made.layers[0].named_parameters():
            if name == "eh_proj.weight":
                weight.normal_(std=0.3, generator=rng)
            elif "norm" in name:
                weight.add_(0.3 * torch.randn(weight.shape, generator=rng))
    return made.to(device, target.dtype).requires_grad_(False).eval()


def drafts(head, runtime: Runtime) -> Session:
    return Session(head, "draft", vocabulary=head.config.vocab_size, runtime=runtime)


def counting(monkeypatch) -> None:
    """What was copied in the background is not waited for once the host has waited for anything that came later."""
    made, read = ids.Fed.__init__, ids.Fed.read

    def noted(self, given):
        made(self, given)
        self.before = other_device.waits.total()

    def looked(self):
        if other_device.waits.total() == self.before:
            other_device.waits["ids that have not arrived"] += 1
        waits = other_device.waits.copy()
        found = read(self)
        other_device.waits.clear()
        other_device.waits.update(waits)
        return found

    monkeypatch.setattr(ids.Fed, "__init__", noted)
    monkeypatch.setattr(ids.Fed, "read", looked)


def counted_rounds(monkeypatch, kind: str, rounds: int = 8) -> list[tuple[collections.Counter[str], int]]:
    """Of each round on the other device, once everything is captured: what the host waits for, and its launches."""
    counting(monkeypatch)
    other_device.registered()
    device = torch.device("other", 0)
    prompt, _ = lively_prompt("llama", 17, 24)
    with other_device.Tensors():
        runtime = capturing(monkeypatch, device)
        used = headed(kind, copy.deepcopy(pair("llama")[0]).to(device), runtime)
        for _ in range(2):
            made = used.rounds(prompt, Sampling(), torch.Generator())
            for _ in range(rounds + 1):
                next(made)
            runtime.settle()
        made, found = used.rounds(prompt, Sampling(), torch.Generator()), []
        next(made)
        for _ in range(rounds):
            other_device.waits.clear()
            other_device.launches.clear()
            next(made)
            found.append((other_device.waits.copy(), other_device.launches.total()))
    return found
