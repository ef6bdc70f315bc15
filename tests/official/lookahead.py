"""Makes lookahead.json: greedy rounds of Lookahead decoding's own code. Call with a folder that holds a checkout of it:

python tests/official/lookahead.py LOOKAHEAD tests/official/lookahead.json

LOOKAHEAD is github.com/hao-ai-lab/LookaheadDecoding at eed010da. Of its lade/decoding.py
jacobi_greedy_search_multilevel is called; of its lade/models/modeling_llama.py jforward_multilevel and
j_make_causal_mask_multilevel are, around `scores` in place of a model: each token reads what the mask lets it read.
"""

import ast
import random
import sys
import types
from pathlib import Path
from typing import Any, Optional, Union

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

SIZE, NEW = 12, 60  # of the vocabulary; tokens of a text


def scores(text: list[int]) -> list[float]:
    """Logits after a text, of which the last two tokens and the length count."""
    mixed = (31 * text[-1] + 7 * (text[-2] if len(text) > 1 else 0) + 11 + 5 * (len(text) // 16)) % 997
    return [(mixed * (word + 3) * (word + 8) % 613 + word / 16) / 80 for word in range(SIZE)]


def functions(checkout: str) -> dict[str, Any]:
    """What is called, by name."""
    names: dict[str, Any] = {"torch": torch, "Any": Any, "List": list, "Optional": Optional, "Tuple": tuple}
    names |= {"Union": Union, "CausalLMOutputWithPast": CausalLMOutputWithPast, "CONFIG_MAP": {}}
    names |= dict.fromkeys(["LogitsProcessorList", "GreedySearchOutput", "StoppingCriteriaList"], list)
    wanted = {
        "jacobi_greedy_search_multilevel",
        "update_token_map",
        "jforward_multilevel",
        "j_make_causal_mask_multilevel",
    }
    for file in ("lade/decoding.py", "lade/models/modeling_llama.py"):
        for node in ast.walk(ast.parse(Path(checkout, file).read_text())):
            if isinstance(node, ast.FunctionDef) and node.name in wanted:
                node.decorator_list = []
                exec(compile(ast.Module([node], []), file, "exec"), names)
    return names


class Model:
    """What the official functions ask of a model. Its cache holds the tokens that were read."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names, self.model, self.seeds = names, self, None
        self.layers = [types.SimpleNamespace(self_attn=types.SimpleNamespace())]
        flags = {
            "output_attentions": False,
            "output_hidden_states": False,
            "use_return_dict": True,
            "pretraining_tp": 1,
        }
        self.config = types.SimpleNamespace(**flags, is_encoder_decoder=False)
        none = {"pad_token_id": None, "eos_token_id": None, "return_dict_in_generate": False}
        self.generation_config = types.SimpleNamespace(**flags, **none, output_scores=False)
        self.rounds: list[list[int]] = []

    def prepare_inputs_for_generation(self, ids, **_):
        places = torch.arange(ids.shape[1])[None]
        return {"input_ids": ids, "position_ids": places, "attention_mask": torch.ones_like(ids), "use_cache": True}

    def _update_model_kwargs_for_generation(self, outputs, kwargs, **_):
        return kwargs | {"past_key_values": outputs.past_key_values}

    def jforward_multilevel(self, **kwargs):
        self.seeds = self.seeds or list(kwargs["past_tokens"][0])
        return self.names["jforward_multilevel"](self, **kwargs)

    def LlamaModeljforward(
        self, input_ids, past_key_values, level_sizes, is_prefill, WINDOWS_SIZE, guess, guess_size, **_
    ):
        """As the official one prepares its mask; then the scores of each token after those that it reads."""
        past = past_key_values[0][0][0, 0, :, 0].long().tolist() if past_key_values else []
        sizes = (level_sizes, is_prefill, WINDOWS_SIZE, guess, guess_size, False, False, tuple(input_ids.shape))
        mask = self.names["j_make_causal_mask_multilevel"](*sizes, torch.float32, 0, torch.device("cpu"), len(past))
        tokens = [*past, *input_ids[0].tolist()]
        read = [[token for token, seen in zip(tokens, row, strict=True) if not seen] for row in mask[0, 0].tolist()]
        cache = torch.tensor(tokens, dtype=torch.float32)[None, None, :, None]
        logits = torch.tensor([[scores(text) for text in read]])
        return Outputs(logits, past_key_values=[(cache, cache.clone())], hidden_states=None, attentions=None)

    def lm_head(self, states):
        return states


class Outputs(tuple):
    def __new__(cls, logits, **named):
        made = super().__new__(cls, (logits,))
        made.__dict__.update(named)
        return made


def case(number: int, names: dict[str, Any]) -> dict:
    rng = random.Random(number)
    window, ngram, guesses = ((7, 5, 7), (4, 3, 3), (5, 4, 2), (3, 7, 3))[number % 4]
    prompt = [rng.randrange(SIZE) for _ in range(3 + number % 7)]
    names["CONFIG_MAP"].update(WINDOW_SIZE=window, LEVEL=ngram, GUESS_SET_SIZE=guesses)
    model, sizes = Model(names), []

    def enough(ids, _):
        sizes.append(ids.shape[1])
        return ids.shape[1] >= len(prompt) + NEW

    random.seed(number)  # of the window's first tokens
    ids = torch.tensor([prompt])
    criteria = type("Criteria", (list,), {"__call__": lambda self, *state: enough(*state)})()
    search = names["jacobi_greedy_search_multilevel"]
    text = search(model, ids, logits_processor=[], stopping_criteria=criteria, attention_mask=torch.ones_like(ids))
    committed = [size - before for before, size in zip([len(prompt), *sizes], sizes, strict=False)]
    given = {"window": window, "ngram": ngram, "candidates": guesses, "prompt": prompt, "seeds": model.seeds}
    return {**given, "text": text[0, len(prompt) :].tolist(), "committed": committed}


def main(checkout: str, out: str, count: str = "24") -> None:
    from checkout import store  # the tests read this file, too

    store(case, functions(checkout), out, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
