"""Makes recycling.json: texts and draft trees of Token Recycling's own code. Call with a folder of a checkout of it:

python tests/official/recycling.py RECYCLING tests/official/recycling.json

RECYCLING is github.com/Luowaterbi/TokenRecycling at 1b4c05cc. Its evaluation/inference_recycling.py is executed with
the device cpu in place of cuda:0 and without its Llama, in whose place `Model` says what follows; called is
recycling_forward, for one prompt after the other, so that the matrix stays.
"""

import json
import sys
import types
from pathlib import Path

import torch

SIZE = 40  # of the vocabulary


def scores(token: int, place: int) -> list[float]:
    """Logits after a token at a place, counted from 0."""
    mixed = (token * token + 3, 29 * (place % 5))
    return [(mixed[0] * (word + 5) * (word + 11) + mixed[1] * word) % 4999 + word / 64 for word in range(SIZE)]


class Model:
    vocab_size = SIZE

    def __init__(self) -> None:
        self.read = []  # the tree of each forward, and the level of each of its tokens

    def __call__(self, input_ids, past_key_values=None, attention_mask=None, position_ids=None):
        if position_ids is None:
            return None  # the prompt, whose logits are not used
        tokens, places = input_ids[0].tolist(), position_ids[0].tolist()
        self.read.append(tokens)
        rows = [scores(token, place) for token, place in zip(tokens, places, strict=True)]
        return types.SimpleNamespace(logits=torch.tensor([rows], dtype=torch.float32))


def official(checkout: Path) -> dict:
    """The names that the file defines."""

    def module(name, **content):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(content)

    cache = torch.zeros(1, 4096, 1)
    template = {}
    exec((checkout / "model/recycling/tree_template_.py").read_text(), template)
    module("fastchat")
    module("fastchat.utils", str_to_torch_dtype=None)
    module("evaluation")
    module("evaluation.eval", run_eval=None, reorg_answer_file=None)
    module("model")
    module("model.recycling")
    state = lambda model: (None, cache, torch.zeros(1, dtype=torch.long))  # noqa: E731
    module("model.recycling.kv_cache", initialize_past_key_values=state)
    module("model.recycling.modeling_llama_kv", LlamaForCausalLM=None)
    module("model.recycling.tree_template_", choose_tree_template=template["choose_tree_template"])
    source = (checkout / "evaluation/inference_recycling.py").read_text().replace("cuda:0", "cpu")
    names = {"__name__": "official", "adj_matrix": torch.zeros((SIZE, 8), dtype=torch.long)}
    exec(source.replace(".cuda()", ""), names)
    return {**names, "template": template["choose_tree_template"]("2.2.2")}


def main(checkout: str, out: str, length: str = "25") -> None:
    names, texts = official(Path(checkout)), []
    parents = [names["template"].index(path[:-1]) if len(path) > 1 else -1 for path in names["template"]]
    for prompt in ([7, 3, 21], [12, 9, 7, 3, 30], [1, 2]):
        model, inputs = Model(), types.SimpleNamespace(input_ids=torch.tensor([prompt]))
        tokenizer = types.SimpleNamespace(eos_token_id=-1)
        text, *_ = names["recycling_forward"](inputs, model, tokenizer, int(length))
        texts.append({"prompt": prompt, "text": text[0, len(prompt) :].tolist(), "trees": model.read})
    Path(out).write_text(json.dumps({"parents": parents, "texts": texts}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
