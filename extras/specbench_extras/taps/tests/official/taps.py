"""Makes taps.json: trees that TAPS's code merges, and chooses between. Call here with a folder that holds a checkout:

PYTHONPATH=../../../../../tests/official python taps.py TAPS taps.json

TAPS is github.com/Moe-Zbeeb/TAPS at 62344725. Of its Eagle-Code/eagle/model/ea_model_dual.py _draft_merged,
_merge_trees and _draft_best are executed, on two heads of its cnets1.py whose weights, embedding and states of the
target are those of eagle.py.
"""

import ast
import sys
import types
from pathlib import Path
from typing import Any

import torch
from checkout import store
from eagle import GROUPS, HEADS, INNER, SIZES, WIDTH, WORDS, numbers, weights
from torch.nn import functional as F

FOLDER = "Eagle-Code/eagle/model"


def made(module: Any, seed: int, size: tuple[int, int, int]) -> Any:
    """A head with the weights of eagle.py."""
    facts = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 1}
    facts |= {"num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "hidden_act": "silu", "rms_norm_eps": 1e-6}
    facts |= {"max_position_embeddings": 256, "rope_scaling": None, "pretraining_tp": 1, "pad_token_id": 0}
    total, top_k, depth = size
    model = module.Model(types.SimpleNamespace(**facts), total_tokens=total, top_k=top_k, depth=depth).double().eval()
    tensors = {**weights("eagle", seed), "embed_tokens.weight": numbers(7, WORDS, WIDTH)}
    assert not model.load_state_dict(tensors, strict=False).unexpected_keys
    model.init_tree()
    return model


def case(number: int, code: dict[str, Any]) -> dict:
    seeds, size = [2 * number + 1, 2 * number + 101][:: -1 if number % 2 else 1], SIZES[number % len(SIZES)]
    output = torch.nn.Linear(WIDTH, WORDS, bias=False).double()
    output.weight.data = numbers(8, WORDS, WIDTH)
    text = [int(word) % WORDS for word in 9 * numbers(number, 14).abs()]
    states, ids = numbers(1000 + number, 14, WIDTH)[None, :10], torch.tensor([text[:11]])

    def both() -> Any:
        layers = {f"ea_layer{at + 1}": made(code["module"], seed, size) for at, seed in enumerate(seeds)}
        dual = types.SimpleNamespace(
            base_model=types.SimpleNamespace(lm_head=output), head1_name=0, head2_name=1, **layers
        )
        dual._merge_trees = types.MethodType(code["_merge_trees"], dual)
        return dual

    with torch.no_grad():
        tree, leaves, _, _ = code["_draft_merged"](both(), states, ids, None)
        chosen = code["_draft_best"](both(), states, ids, None)[-1]
    paths = [[int(tree[0, node]) for node in leaf if node > 0] for leaf in leaves.tolist()]
    return {
        "seeds": seeds,
        "size": list(size),
        "number": number,
        "text": text,
        "paths": sorted(paths),
        "chosen": chosen,
    }


def main(checkout: str, out: str, count: str = "12") -> None:
    sys.path.insert(0, str(Path(checkout, FOLDER)))
    import cnets1

    code: dict[str, Any] = {"torch": torch, "F": F, "module": cnets1}
    for node in ast.walk(ast.parse(Path(checkout, FOLDER, "ea_model_dual.py").read_text())):
        if isinstance(node, ast.FunctionDef) and node.name in ("_merge_trees", "_draft_merged", "_draft_best"):
            exec(compile(ast.Module([node], []), "ea_model_dual.py", "exec"), code)
    store(case, code, out, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
