"""Makes ngram.json: drafts of vLLM's own n-gram proposer. Call with a folder that holds a checkout of it:

python tests/official/ngram.py VLLM tests/official/ngram.json

VLLM is the package `vllm` in github.com/vllm-project/vllm at 016e8ede. Of its v1/spec_decode/ngram_proposer.py
_find_longest_matched_ngram_and_propose_tokens is executed, without numba, which compiles it there.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np


def case(number: int, propose) -> dict:
    rng = random.Random(number)
    alphabet, shortest = 2 + number % 6, 1 + number % 3
    size = {"ngram": shortest + number % 5, "shortest": shortest, "gamma": 1 + number % 12}
    text = [rng.randrange(alphabet) for _ in range(1 + number % 70)]
    found = propose(np.array(text), size["shortest"], size["ngram"], 4096, size["gamma"])
    return {**size, "text": text, "draft": found.tolist()}


def main(checkout: str, out: str, count: str = "60") -> None:
    source = Path(checkout, "v1/spec_decode/ngram_proposer.py").read_text()
    names = {"np": np, "jit": lambda **_: lambda function: function, "Optional": dict}
    function = source[source.index("@jit(nopython=True)") :]
    exec(function.replace("Optional[np.ndarray]", "object"), names)
    propose = names["_find_longest_matched_ngram_and_propose_tokens"]
    cases = [case(number, propose) for number in range(int(count))]
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
