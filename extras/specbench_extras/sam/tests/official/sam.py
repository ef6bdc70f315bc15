"""Makes sam.json: drafts of SAM-Decoding's own code. Call here with a folder that holds a checkout of it:

PYTHONPATH=../../../../../tests/official python sam.py SAM sam.json

SAM is github.com/hyx1999/SAM-Decoding at 18c41f05. Its file samd/sam/dyn_sam.py is read; called are add_tokens, lookup
and gen_draft of DynSAM, as `DraftModel` in samd/draft.py does. Stored drafts lack the last committed token, with
which they begin there, and the zeros that fill them up.
"""

import random
import sys
import types

from checkout import module, store


def case(number: int, official) -> dict:
    rng = random.Random(number)
    alphabet = 2 + number % 9

    def some(length):
        if rng.random() < 0.5:
            start = rng.randrange(alphabet)
            return [1 + (start + place) % alphabet for place in range(length)]
        return [rng.randrange(1, alphabet + 1) for _ in range(length)]

    automaton = official.DynSAM(40)
    text, rounds, drafts = [], [], []
    for size in [rng.randrange(3, 150), *(rng.randrange(1, 9) for _ in range(5))]:
        tokens = some(size)
        automaton.add_tokens(tokens)
        text += tokens
        last = rng.choice(text[-8:])  # committed, but not read yet
        index, length = automaton.lookup(last)
        drafted = automaton.gen_draft(index, last)[1:]
        while drafted and not drafted[-1]:
            drafted.pop()
        rounds.append(tokens)
        drafts.append([last, length, drafted])
    return {"rounds": rounds, "drafts": drafts}


def main(checkout: str, out: str, count: str = "12") -> None:
    sys.modules["tqdm"] = types.ModuleType("tqdm")
    sys.modules["tqdm"].tqdm = None
    store(case, module(checkout, "samd/sam/dyn_sam.py"), out, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
