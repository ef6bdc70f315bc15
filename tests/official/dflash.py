"""Makes dflash.json: blocks that DFlash's own code drafts. Call with a folder that holds a checkout of it:

python tests/official/dflash.py dflash tests/official/dflash.json

DFlash is github.com/z-lab/dflash at 44947fbf. Its dflash/model.py is imported; called is dflash_generate at T = 0, with
a tiny Qwen 3 as target. The weights of both are those of `weights`, in float64. Each result of its `sample` for a draft
is kept: the tokens of a block after the first.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

WORDS, WIDTH, LAYERS, READ, MASK, NEW = 6, 16, 5, [1, 2], 4, 25
BLOCKS = [2, 4, 8]


class Cropped(DynamicCache):
    """Is cut to a length, as caches of the transformers 4.57 that DFlash names; later ones are told how much to cut."""

    def crop(self, length: int) -> None:
        if length < self.get_seq_length():
            super().crop(length - self.get_seq_length())


def config(layers: int) -> dict[str, Any]:
    sizes = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": layers}
    return sizes | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256}


def weights(model: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Random numbers for each tensor of a model, in the order of their names."""
    rng = torch.Generator().manual_seed(seed)
    shapes = sorted((name, tensor.shape) for name, tensor in model.state_dict().items() if name != "mask")
    return {name: 2 * torch.randn(*shape, generator=rng, dtype=torch.float64) for name, shape in shapes}


def target(seed: int) -> Qwen3ForCausalLM:
    made = Qwen3ForCausalLM(Qwen3Config(**config(LAYERS), tie_word_embeddings=False)).double().eval()
    made.load_state_dict(weights(made, seed))
    return made.requires_grad_(False)


def prompt(seed: int) -> list[int]:
    return torch.randint(WORDS, (3 + seed % 9,), generator=torch.Generator().manual_seed(seed)).tolist()


def case(seed: int, module: Any, model: Any, generate: Any) -> dict[str, Any]:
    """A text and its drafts by a head of the class `model` in a module, with `generate` of head, target and prompt."""
    size = BLOCKS[seed % len(BLOCKS)]
    chosen = {"target_layer_ids": READ, "mask_token_id": MASK}
    facts = Qwen3Config(**config(2), block_size=size, num_target_layers=LAYERS, dflash_config=chosen)
    facts._attn_implementation = "eager"
    head = model(facts).double().eval()
    head.load_state_dict(weights(head, 1000 + seed))
    drafts: list[list[int]] = []
    own = module.sample

    def kept(logits: torch.Tensor, *temperature: float) -> torch.Tensor:
        tokens: torch.Tensor = own(logits, *temperature)
        if not temperature:  # as only drafts are sampled
            drafts.append(tokens[0].tolist())
        return tokens

    module.sample = kept
    made = generate(head, target(seed), torch.tensor([prompt(seed)]))
    module.sample = own
    text = made[0, len(prompt(seed)) :].tolist()
    return {"seed": seed, "block": size, "text": text, "drafts": drafts}


def main(checkout: str, out: str, count: str = "24") -> None:
    sys.path.insert(0, str(Path(checkout, "dflash")))
    import model

    model.DynamicCache = Cropped  # type: ignore[misc]

    def generate(head: Any, target: Any, ids: torch.Tensor) -> Any:
        return model.dflash_generate(head, target, ids, NEW, None, 0.0, return_stats=False)

    cases = [case(seed, model, model.DFlashDraftModel, generate) for seed in range(int(count))]
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
