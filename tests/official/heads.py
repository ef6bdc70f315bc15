"""Makes heads.json: what heads of Medusa, Hydra, Kangaroo and SpecDec++ compute in their authors' own code. Call with

python tests/official/heads.py MEDUSA HYDRA KANGAROO SPECDECPP tests/official/heads.json

These are folders with checkouts of github.com/FasterDecoding/Medusa at e2a5d20c, zankner/Hydra at 3f39fbd2,
Equationliu/Kangaroo at 4f0949d4 and Kaffaljidhmah2/SpecDec_pp at 9c52edcf. Called are MedusaModelABC.forward (its class
and ResBlock are executed, with a target that gives the states), HydraMLP.proposal of
hydra/model/hydra_heads/mlp_head.py, AdapterModel.forward of kangaroo/adapter.py and AcceptancePredictionHead.forward of
specdec_pp/wrap_model.py. Weights and states are those of `numbers`, in float64.
"""

import ast
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from checkout import module
from torch import nn

WIDTH, WORDS = 16, 20
TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]]  # ranks, of Hydra's draft


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(model: nn.Module, seed: int) -> Any:
    """A model with random weights, in the order of their names; shared ones have those of their last name."""
    named = sorted((name, tensor) for name, tensor in model.state_dict().items() if "rotary" not in name)
    for at, (name, tensor) in enumerate(named):
        tensor.copy_(numbers(97 * seed + at, *tensor.shape) / (4 if "norm" not in name else 1))
    return model.eval()


def rounded(tensor: torch.Tensor) -> Any:
    return json.loads(json.dumps(tensor.double().tolist()), parse_float=lambda number: round(float(number), 6))


def medusa(checkout: str, seed: int) -> dict[str, Any]:
    """Logits [heads, V] of one state."""
    names: dict[str, Any] = {"nn": nn, "torch": torch}
    names["AutoTokenizer"] = types.SimpleNamespace(from_pretrained=lambda name: None)
    tree = ast.parse(Path(checkout, "medusa/model/medusa_model.py").read_text())
    wanted = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in ("ResBlock", "MedusaModelABC")
    ]
    exec(compile(ast.Module(wanted, []), "medusa_model.py", "exec"), names)

    class Target(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.model = lambda **_: [numbers(seed, 1, 1, WIDTH)]

    layers = 1 + seed % 3
    config = {"medusa_num_heads": 3, "medusa_num_layers": layers, "_name_or_path": ""}
    model = type("Medusa", (names["MedusaModelABC"], Target), {})
    model = model(types.SimpleNamespace(**config, hidden_size=WIDTH, vocab_size=WORDS)).double()
    logits = filled(model, seed)(medusa_forward=True)
    return {"seed": seed, "layers": layers, "logits": rounded(logits[:, 0, 0])}


def hydra(checkout: str, seed: int) -> dict[str, Any]:
    """The tokens of a tree of ranks, each after its path."""
    mlp, utils = (module(checkout, f"hydra/model/{file}.py") for file in ("hydra_heads/mlp_head", "utils"))
    layers, embedding = 1 + seed % 3, nn.Embedding(WORDS, WIDTH, _weight=numbers(5, WORDS, WIDTH))
    config = types.SimpleNamespace(hidden_size=WIDTH, vocab_size=WORDS)
    heads = mlp.HydraMLP(layers, 3, True, lambda tokens: embedding(tokens), config).double()
    buffers = utils.generate_hydra_buffers(TREE, device="cpu")
    last = seed % WORDS
    logits = nn.functional.one_hot(torch.tensor([[last]]), WORDS).double()
    with torch.no_grad():
        paths, _ = filled(heads, seed).proposal(logits, numbers(seed, 1, 1, WIDTH), buffers)
    found = [
        [token for token, node in zip(path, nodes, strict=True) if node >= 0]
        for path, nodes in zip(paths.tolist(), buffers["retrieve_indices"].tolist(), strict=True)
    ]
    return {"seed": seed, "layers": layers, "last": last, "paths": sorted(path[1:] for path in found)}


def kangaroo(checkout: str, seed: int) -> dict[str, Any]:
    """The states that the output layer reads after each of seven, read as five and then one by one."""
    facts = {"hidden_size": WIDTH, "vocab_size": WORDS, "num_attention_heads": 4, "num_key_value_heads": 4}
    facts |= {"num_hidden_layers": 1, "rms_norm_eps": 1e-6, "pad_token_id": 0, "max_position_embeddings": 64}
    model = module(checkout, "kangaroo/adapter.py").AdapterModel(types.SimpleNamespace(**facts)).double()
    model, states, cache, read = filled(model, seed), numbers(seed, 1, 7, WIDTH), None, []
    with torch.no_grad():
        for begun, end in ((0, 5), (5, 6), (6, 7)):
            found, cache = model(inputs_embeds=states[:, begun:end], past_key_values=cache, use_cache=True)
            read.append(found[0])
    return {"seed": seed, "states": rounded(torch.cat(read))}


def specdecpp(checkout: str, seed: int) -> dict[str, Any]:
    """The chance of acceptance after a state."""
    depth = seed % 4
    head = module(checkout, "specdec_pp/wrap_model.py").AcceptancePredictionHead(
        {"hidden_size": WIDTH, "num_layers": depth}
    )
    with torch.no_grad():
        chance = filled(head.double(), seed)(numbers(seed, WIDTH)).softmax(-1)[1]
    return {"seed": seed, "depth": depth, "chance": round(float(chance), 8)}


def main(medusas: str, hydras: str, kangaroos: str, specdecs: str, out: str, count: str = "6") -> None:
    makers = {medusa: medusas, hydra: hydras, kangaroo: kangaroos, specdecpp: specdecs}
    cases = {make.__name__: [make(checkout, seed) for seed in range(int(count))] for make, checkout in makers.items()}
    Path(out).write_text("{" + ",\n".join(f'"{name}": {json.dumps(rows)}' for name, rows in cases.items()) + "}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
