"""Makes eagle.json: draft trees of EAGLE's own heads. Call with a folder that holds a checkout of it:

python tests/official/eagle.py EAGLE tests/official/eagle.json

EAGLE is github.com/SafeAILab/EAGLE at cb7e0841. Its eagle/model/cnets.py (EAGLE-3) and cnets1.py (EAGLE and EAGLE-2)
are imported; called is topK_genrate of their Model, as EaModel.eagenerate calls it, for a prompt and for one round
more. The weights, the embedding and the target's states are those of `numbers`.
"""

import json
import sys
import types
from pathlib import Path

import torch

WIDTH, INNER, HEADS, GROUPS, WORDS, DRAFTED = 16, 24, 4, 2, 40, 14
SIZES = [(60, 10, 7), (16, 4, 3), (6, 1, 5), (24, 6, 2)]  # total_tokens, top_k, depth


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(kind: str, seed: int) -> dict[str, torch.Tensor]:
    """The tensors of a head of EAGLE-3 or EAGLE, by their official names."""
    layer, wide = ("midlayer", 2 * WIDTH) if kind == "eagle3" else ("layers.0", WIDTH)
    keys = WIDTH // HEADS * GROUPS
    shapes = {f"{layer}.self_attn.{name}_proj.weight": (WIDTH if name == "q" else keys, wide) for name in "qkv"}
    shapes |= {f"{layer}.self_attn.o_proj.weight": (WIDTH, WIDTH), f"{layer}.mlp.down_proj.weight": (WIDTH, INNER)}
    shapes |= {f"{layer}.mlp.{name}_proj.weight": (INNER, WIDTH) for name in ("gate", "up")}
    shapes |= {f"{layer}.post_attention_layernorm.weight": (WIDTH,)}
    if kind == "eagle3":
        shapes |= {f"{layer}.{name}.weight": (WIDTH,) for name in ("hidden_norm", "input_layernorm")}
        shapes |= {"norm.weight": (WIDTH,), "fc.weight": (WIDTH, 3 * WIDTH), "lm_head.weight": (DRAFTED, WIDTH)}
    else:
        shapes |= {"fc.weight": (WIDTH, 2 * WIDTH), "fc.bias": (WIDTH,)}
    scale = 2 if kind == "eagle3" else 6  # EAGLE norms no features, which must not grow from level to level
    return {name: numbers(97 * seed + at, *shape) / scale for at, (name, shape) in enumerate(sorted(shapes.items()))}


def case(number: int, modules: dict) -> dict:
    kind, size = ("eagle3", "eagle")[number % 2], SIZES[number // 2 % len(SIZES)]
    facts = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 1}
    facts |= {"num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "hidden_act": "silu", "rms_norm_eps": 1e-6}
    facts |= {"max_position_embeddings": 256, "rope_scaling": None, "pretraining_tp": 1, "pad_token_id": 0}
    config = types.SimpleNamespace(**facts, draft_vocab_size=DRAFTED)
    total, top_k, depth = size
    model = modules[kind].Model(config, total_tokens=total, top_k=top_k, depth=depth).double().eval()
    tensors = weights(kind, number)
    if kind == "eagle3":
        tensors["d2t"] = 2 * torch.arange(DRAFTED)
    missing = model.load_state_dict({**tensors, "embed_tokens.weight": numbers(7, WORDS, WIDTH)}, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"t2d"}
    model.init_tree()
    head = torch.nn.Linear(WIDTH, WORDS, bias=False).double()
    head.weight.data = numbers(8, WORDS, WIDTH)
    text = [int(word) % WORDS for word in 9 * numbers(number, 14).abs()]
    reads = 3 * WIDTH if kind == "eagle3" else WIDTH
    rounds = []
    with torch.no_grad():
        for begun, end in ((0, 10), (10, 13)):  # the target has read tokens up to `end`; the next one follows
            states = numbers(1000 + number, 14, reads)[None, begun:end]
            tree, leaves, _, _ = model.topK_genrate(states, torch.tensor([text[: end + 1]]), head, None)
            paths = [[int(tree[0, node]) for node in leaf if node > 0] for leaf in leaves.tolist()]
            rounds.append(sorted(paths))
    return {"kind": kind, "seed": number, "size": list(size), "text": text, "rounds": rounds}


def main(checkout: str, out: str, count: str = "16") -> None:
    sys.path.insert(0, str(Path(checkout, "eagle/model")))
    import cnets
    import cnets1

    modules = {"eagle3": cnets, "eagle": cnets1}
    cases = [case(number, modules) for number in range(int(count))]
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
