"""Makes fly.json: greedy texts and rounds of FLy's own code. Call with a folder that holds a checkout of it:

python tests/official/fly.py FLY tests/official/fly.json

FLY is github.com/AMD-AGI/FLy at 6667ae84. Its fly/models/FLy.py is imported; called is generate_chunks at T = 0, with
the window, the threshold and the n-grams of its fly_config, with `scores` in place of models.
"""

import inspect
import random
import sys
import types

import torch

SIZE, NEW = 20, 60  # of the vocabulary; tokens of a text


def scores(tokens: list[int], draft: bool) -> list[float]:
    """Logits after a text. The draft model now and then prefers the target's second token; some rows are flat."""
    last, before = tokens[-1], tokens[-2] if len(tokens) > 1 else 0
    mixed = (7 * last + 3) * (2 + before % 3) + len(tokens) // 24
    row = [
        ((mixed + 1) * (word + 3) * (word + 10) % 211 + word / 64) / (300 if last % 3 else 30) for word in range(SIZE)
    ]
    if draft and len(tokens) % 9 == 5:
        order = sorted(range(SIZE), key=lambda word: -row[word])
        row[order[0]], row[order[1]] = row[order[1]], row[order[0]]
    return row


class Cache(list):
    """The tokens that were read."""

    def crop(self, length: int) -> None:
        del self[length:]


class Model:
    device = "cpu"

    def __init__(self, draft: bool) -> None:
        self.draft = draft

    def eval(self):
        return self

    def __call__(self, input_ids, past_key_values=None, **_):
        cache = Cache() if past_key_values is None else past_key_values
        rows = []
        for token in input_ids[0].tolist():
            cache.append(token)
            rows.append(scores(cache, self.draft))
        return types.SimpleNamespace(logits=torch.tensor([rows]), past_key_values=cache)


def case(number: int, official) -> dict:
    rng = random.Random(number)
    gamma, ngram = (15, 9, 25)[number % 3], bool(number % 2)
    prompt = [rng.randrange(SIZE) for _ in range(9 + number)]
    settings = {"k": gamma, "total_gen_tok": NEW, "enable_fly": True, "win_len": 6, "entropy_thre": 0.3}
    settings |= {"use_ngram": ngram, "max_ngram_size": 4, "num_ngram_pred_tokens": 6}
    log = types.SimpleNamespace(info=lambda *_: None)
    target = Model(False)
    target.dtype = torch.float32
    made = next(cls for _, cls in inspect.getmembers(official, inspect.isclass) if hasattr(cls, "generate_chunks"))
    decoder = made(Model(True), target, types.SimpleNamespace(eos_token_id=-1), log, settings)
    rounds, create = [], decoder._create_output

    def kept(*arguments, update_counter=False, **named):
        output = create(*arguments, update_counter=update_counter, **named)
        if update_counter:
            rounds.append(output[0].tolist())
        return output

    decoder._create_output = kept
    decoder.generate_chunks(torch.tensor([prompt]), 0)
    return {"gamma": gamma, "ngram": ngram, "prompt": prompt, "rounds": rounds}


def main(checkout: str, out: str, count: str = "12") -> None:
    from checkout import module, store  # the tests read this file, too

    sys.path.insert(0, checkout)
    store(case, module(checkout, "fly/models/FLy.py"), out, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
