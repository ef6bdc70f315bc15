"""Makes easyspec.json: drafts of EasySpec's own layers. Call here with a folder that holds a checkout of its code:

python easyspec.py EASYINFRA easyspec.json

That is github.com/yize-wu/EasyInfra at 6327f7b9, where its authors keep EasySpec. Of its
easyinfra/models/llama3_hyperdraft LlamaDecoder (llama_decoder_impl.py) and LlamaHyperDecoderLayer
(modeling_llama3_hyperdraft.py) are executed, with norm and linear layer of its generation/modules. Its attention takes
other arguments than they give by now, and flatten_attn_output is gone: both stand here. The layers of a group run in as
many threads, which share what processes gather there. Weights are those of `weights`, in float64.
"""

import ast
import json
import sys
import threading
import types
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

WORDS, WIDTH, LAYERS, GAMMA = 48, 32, 8, 5
GROUPS = [[[0], [1, 2, 3, 4], [5, 6], [7]], [[0], [1, 2, 3], [4, 5, 6], [7]], [[0], [1, 2], [3, 4], [5, 6], [7]]]
FACTS: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 48}
FACTS |= {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}


def weights(shapes: dict[str, torch.Size], seed: int) -> dict[str, torch.Tensor]:
    """Random numbers for each tensor of a model, in the order of their names."""
    rng, made = torch.Generator().manual_seed(seed), {}
    for name, shape in sorted(shapes.items()):
        tensor = torch.randn(*shape, generator=rng, dtype=torch.float64)
        size = 0.5 if "o_proj" in name or "down_proj" in name else 1
        made[name] = tensor if "embed" in name else size * tensor / shape[-1] ** 0.5 + ("norm" in name)
    return made


class Cache:
    """Keys and values of each layer, [1, heads, n, width]."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if layer in self.kept:
            before = self.kept[layer]
            keys, values = torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)
        self.kept[layer] = keys, values
        return keys, values

    def crop(self, length: int) -> None:
        self.kept = {layer: (k[:, :, :length], v[:, :, :length]) for layer, (k, v) in self.kept.items()}


class Attention:
    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        shared = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
        return nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=attention_mask)


class Group:
    """What one of a group's threads knows of the others."""

    def __init__(self, rank: int, size: int, shared: dict[int, torch.Tensor], barrier: threading.Barrier) -> None:
        self.local_rank, self.group_size, self.shared, self.barrier = rank, size, shared, barrier

    def all_gather_into_tensor(self, out: torch.Tensor, own: torch.Tensor) -> None:
        self.shared[self.local_rank] = own
        self.barrier.wait()
        out.copy_(torch.stack([self.shared[rank] for rank in range(self.group_size)]))


def official(checkout: str) -> dict[str, Any]:
    policies = types.SimpleNamespace(ATTN_ONLY=0)
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional, "LlamaConfig": LlamaConfig}
    names |= {"Parameter": nn.Parameter, "ACT2FN": transformers.activations.ACT2FN, "GroupCommunicator": Group}
    names |= {"SdpaAttention": Attention, "TreeDynamicCache": Cache, "LayerParallelPolicy": policies}
    names |= {"flatten_attn_output": lambda states: states.transpose(1, 2).flatten(2)}
    exec("from typing import *", names)
    wanted = {
        "generation/modules/linear/base_linear.py": ["BaseLinear"],
        "generation/modules/rmsnorm/base_rmsnorm.py": ["_rmsnorm", "BaseRMSNorm"],
        "models/llama3_hyperdraft/llama_decoder_impl.py": [
            *("rotate_half", "_apply_rotary_pos_emb", "apply_rotary_pos_emb", "all_gather_attn_output", "LlamaDecoder")
        ],
        "models/llama3_hyperdraft/modeling_llama3_hyperdraft.py": ["LlamaHyperDecoderLayer"],
    }
    for file, classes in wanted.items():
        tree = ast.parse(Path(checkout, "easyinfra", file).read_text())
        chosen = [node for node in tree.body if getattr(node, "name", "") in classes]
        assert len(chosen) == len(classes)
        exec(compile(ast.Module(chosen, []), file, "exec"), names)
        names["LPPOLICY_2_DECODER"] = {0: names.get("LlamaDecoder")}
    return names


class Drafts:
    """A draft model of the official layers, read to the end of a text as it is, and beyond it fuzzily."""

    def __init__(self, names: dict[str, Any], groups: list[list[int]], seed: int) -> None:
        self.outer = LlamaForCausalLM(LlamaConfig(**FACTS)).double().eval()
        tensors = weights({name: own.shape for name, own in self.outer.state_dict().items()}, seed)
        self.outer.load_state_dict(tensors)
        config = LlamaConfig(**FACTS, o_proj_bias=False)
        self.layers = []
        for number, layers in enumerate(groups):
            shared: dict[int, torch.Tensor] = {}
            barrier = threading.Barrier(len(layers))
            ranks = [Group(rank, len(layers), shared, barrier) for rank in range(len(layers))]
            made = [names["LlamaHyperDecoderLayer"](config, number, rank, 0, layers).double() for rank in ranks]
            for one in made:
                for layer, inner in zip(layers, one.layers, strict=True):
                    start = f"model.layers.{layer}."
                    own = {name[len(start) :]: tensors[name] for name in tensors if name.startswith(start)}
                    inner.load_state_dict(
                        {name.replace("self_attn.", "").replace("mlp.", ""): own[name] for name in own}
                    )
            self.layers.append(made)
        self.cache = Cache()

    def read(self, tokens: list[int], begun: int, exact: bool) -> int:
        """The likeliest token after tokens that stand at `begun` and after."""
        states = self.outer.model.embed_tokens(torch.tensor([tokens]))
        places = torch.arange(begun, begun + len(tokens))
        angles = self.outer.model.rotary_emb(states, places[None])
        known = torch.arange(begun + len(tokens))
        mask = (known[None] <= places[:, None])[None, None]
        named = {"attention_mask": mask, "past_key_values": self.cache, "candidate_refill": exact}
        named["position_embeddings"] = (angles[0][0], angles[1][0])
        for ranks in self.layers:
            results: list[Any] = [None] * len(ranks)

            def one(rank: int, ranks: Any = ranks, results: Any = results, entered: Any = states) -> None:
                with torch.no_grad():
                    results[rank] = ranks[rank](entered, **named)[0]

            threads = [threading.Thread(target=one, args=(rank,)) for rank in range(1 if exact else len(ranks))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            states = results[0]
            assert exact or all(torch.equal(states, other) for other in results)
        return int(self.outer.lm_head(self.outer.model.norm(states))[0, -1].argmax())


@torch.no_grad()
def case(seed: int, names: dict[str, Any]) -> dict[str, Any]:
    """Drafts after a text that grows: each reads as it is what was added, and drops what earlier drafts have left."""
    groups, rng = GROUPS[seed % len(GROUPS)], torch.Generator().manual_seed(seed)
    drafts, text, known, rounds = Drafts(names, groups, seed), [], 0, []
    for added in (9, 3, 1, 4, 2, 6):
        text += torch.randint(WORDS, (added,), generator=rng).tolist()
        drafts.cache.crop(known)
        drafted = [drafts.read(text[known:], known, exact=True)]
        known = len(text)
        while len(drafted) < GAMMA:
            drafted.append(drafts.read(drafted[-1:], known + len(drafted) - 1, exact=False))
        rounds.append(drafted)
    return {"seed": seed, "group": max(map(len, groups)), "text": text, "drafts": rounds}


def main(checkout: str, out: str, count: str = "12") -> None:
    names = official(checkout)
    cases = [case(seed, names) for seed in range(int(count))]
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
