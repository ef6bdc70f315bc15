"""Makes logitspec.json: drafts of LogitSpec's own code. Call here with a folder that holds a checkout of it:

PYTHONPATH=../../../../../tests/official python logitspec.py LOGITSPEC logitspec.json

LOGITSPEC is github.com/smart-lty/LogitSpec at 659bba9c. Its file model/logitspec/generate_drafts_util.py is read;
called are Pool and generate_draft_tokens, as logitspec_generate calls them, with the defaults of its evaluation.
"""

import random
import sys

import torch
from checkout import module, store

SIZE = 90  # of the vocabulary


def case(number: int, official) -> dict:
    """A prompt, tokens that are committed round by round, and what is drafted at the end."""
    rng = random.Random(number)
    alphabet = 2 + number % 7  # the fewer tokens a text has, the more often it repeats itself

    def text(length):
        if number % 3 == 2:
            return [1 + place % (alphabet + 1) for place in range(length)]
        return [rng.randrange(alphabet) for _ in range(length)]

    prompt, rounds = text(rng.randrange(3, 60)), [text(rng.randrange(1, 22)) for _ in range(number % 6)]
    pool = official.Pool(input_ids=list(prompt), max_ngram_size=3, num_pred_tokens=20)
    for tokens in rounds:
        pool.update_pool(list(tokens))
    order = rng.sample(range(SIZE), SIZE)
    if number % 4:  # the text goes on with what it holds
        order.sort(key=lambda token: token > alphabet)
    logits = torch.empty(1, SIZE)
    logits[0, torch.tensor(order)] = torch.arange(SIZE, 0, -1.0)
    whole = torch.tensor([[*prompt, *(token for tokens in rounds for token in tokens)]])
    last, drafts, _ = official.generate_draft_tokens(pool.pool, whole, logits, 3, 64)
    assert last == order[0]
    return {"prompt": prompt, "rounds": rounds, "order": order, "drafts": [list(draft) for draft in drafts]}


def main(checkout: str, out: str, count: str = "24") -> None:
    store(case, module(checkout, "model/logitspec/generate_drafts_util.py"), out, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
