"""Heads with given weights compute what the authors' own code computed with them (tests/official/heads.py)."""

import pytest
import torch
from drafted_trees import paths
from gates import DEVICE, GREEDY
from official_cases import official_cases
from torch import nn
from transformers import DynamicCache, LlamaConfig

from specbench.engine.models.draft_heads import HydraHeads, MedusaHeads
from specbench.engine.models.exit_adapter import ExitAdapter
from specbench.engine.ranked_trees import ranked_tree
from specbench.engine.session import Unwatched
from specbench.methods.heads.hydra import HydraDrafter
from specbench.methods.heads.medusa import MedusaDrafter
from specbench.methods.lengths.specdecpp import AcceptanceHead

WIDTH, WORDS = 16, 20
TREE = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0)]


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    """Those of the recipe, by the official names."""
    return {
        name: numbers(97 * seed + at, *shapes[name]) / (4 if "norm" not in name else 1)
        for at, name in enumerate(sorted(shapes))
    }


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def load(model: nn.Module, tensors: dict[str, torch.Tensor], shared: dict[str, str]) -> nn.Module:
    """With these tensors, of which `shared` are parts of one block: each is as the one that it names."""
    model.load_state_dict({name: tensors[shared.get(name, name)] for name in tensors})
    return model.double().to(DEVICE)


def output() -> nn.Linear:
    return nn.Linear(WIDTH, WORDS, bias=False, dtype=torch.float64, device=DEVICE)


def test_medusas_heads():
    """Six of three heads, of one to three blocks, which one block is; the state's likeliest tokens make the draft."""
    for case in official_cases("heads")["medusa"]:
        layers, seed = case["layers"], case["seed"]
        heads = MedusaHeads(3, layers, WIDTH, own=True, output=output()).double()
        names = {
            f"{head}.{at}.linear.{part}" for head in range(3) for at in range(layers) for part in ("weight", "bias")
        }
        shared = {name: name.replace(f".{name[2]}.", f".{layers - 1}.", 1) for name in names}
        load(heads, weights(shapes_of(heads), seed), shared)
        drafter = MedusaDrafter(heads, ranked_tree(TREE, torch.device(DEVICE)), WORDS, Unwatched())
        drafter.state = numbers(seed, 1, WIDTH).to(DEVICE)
        read = torch.cat([heads.of_state(head, drafter.state) for head in range(3)])
        assert torch.allclose(read.cpu(), torch.tensor(case["logits"], dtype=torch.float64), atol=2e-6)
        draft = drafter.propose([0], 3, GREEDY, torch.Generator())
        best = [sorted(range(WORDS), key=lambda word, row=row: -row[word]) for row in case["logits"]]
        assert paths(draft.tokens.tolist(), draft.parents) == [
            tuple(best[level][rank] for level, rank in enumerate(path)) for path in TREE
        ]


def test_hydras_drafts():
    """Six trees of three heads that read the paths, of one to three blocks; all but the first are one block."""
    embedding = nn.Embedding(WORDS, WIDTH, _weight=numbers(5, WORDS, WIDTH)).to(DEVICE)
    for case in official_cases("heads")["hydra"]:
        layers, seed = case["layers"], case["seed"]
        heads = HydraHeads(3, layers, WIDTH, True, output(), embedding).double()
        parts = [f"hydra_mlp.{head}.{{}}.linear.{part}" for head in range(3) for part in ("weight", "bias")]
        shared = {part.format(at): part.format(layers - 1) for part in parts for at in range(1, layers)}
        load(heads, weights(shapes_of(heads), seed), shared)
        drafter = HydraDrafter(heads, ranked_tree(TREE, torch.device(DEVICE)), WORDS, Unwatched())
        drafter.state = numbers(seed, 1, WIDTH).to(DEVICE)
        draft = drafter.propose([0, case["last"]], 3, GREEDY, torch.Generator())
        found = paths(draft.tokens.tolist(), draft.parents)
        prefixes = {tuple(path[: end + 1]) for path in case["paths"] for end in range(len(path))}
        assert set(found) == prefixes and len(found) == len(TREE)


def test_kangaroos_adapter():
    """Six of seven states each, read in three parts."""
    facts = {"num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 64}
    for case in official_cases("heads")["kangaroo"]:
        config = LlamaConfig(hidden_size=WIDTH, vocab_size=WORDS, **facts)
        config._attn_implementation = "eager"
        adapter = ExitAdapter(config, output())
        official = {name if name == "norm.weight" else f"layers.0.{name}": name for name in shapes_of(adapter)}
        tensors = weights({name: shapes_of(adapter)[own] for name, own in official.items()}, case["seed"])
        load(adapter, {own: tensors[name] for name, own in official.items()}, {})
        features, cache = numbers(case["seed"], 1, 7, WIDTH).to(DEVICE), DynamicCache()
        read = [adapter.states(features[:, begun:end], cache)[0] for begun, end in ((0, 5), (5, 6), (6, 7))]
        assert torch.allclose(torch.cat(read).cpu(), torch.tensor(case["states"], dtype=torch.float64), atol=1e-5)


def test_the_acceptance_head():
    """Six of no to three blocks, which one block is."""
    for case in official_cases("heads")["specdecpp"]:
        depth, seed = case["depth"], case["seed"]
        shapes = {f"model.{at}.linear.{part}": (WIDTH,) * size for at in range(depth) for part, size in PARTS}
        shapes |= {f"model.{depth}.weight": (2, WIDTH), f"model.{depth}.bias": (2,)}
        tensors, last = weights(shapes, seed), f"model.{depth - 1}.linear."
        blocks = (
            [tensors[last + part][None] for part, _ in PARTS]
            if depth
            else [torch.zeros(0, WIDTH, WIDTH), torch.zeros(0, WIDTH)]
        )
        head = AcceptanceHead(*blocks, tensors[f"model.{depth}.weight"], tensors[f"model.{depth}.bias"], depth)
        assert head.probability(numbers(seed, WIDTH)) == pytest.approx(case["chance"], abs=1e-7)


PARTS = (("weight", 2), ("bias", 1))
