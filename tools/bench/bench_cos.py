"""CoS next to standard collaborative decoding, and what combining the models costs of a round.

Run by `make bench`; exits with 1 where combining takes more than ten percent of the decode time, where CoS with γ = 1
is slower than the standard beyond noise (Corollary 3.7), or where a greedy text is not the standard's. Speeds are
interleaved in one process.
"""

import sys

from benches import built, clocked, decode, prompts, race

from specbench.config import load_pair as read_pair
from specbench.engine.clock import Stopwatch
from specbench.engine.models.pair import load_pair
from specbench.engine.types import Sampling
from specbench.methods.collaborative.cos.collaborate import Collaboration
from specbench.methods.collaborative.cos.combine import KeyedCombination

DOCUMENTS = 8  # of each family
BOUND = 0.10
SETTINGS = (  # pair, temperature, how it is combined
    ("pocket-duo", 1.0, "weighted"),
    ("pocket-trio", 1.0, "weighted"),
    ("pocket-contrast", 0.0, "contrastive"),
    ("pocket-contrast", 1.0, "contrastive"),
)
METHODS = ("ensemble", "cos-naive", "cos-sd", "cos")


def main() -> int:
    return max([compared(*setting) for setting in SETTINGS])


def compared(name: str, temperature: float, combine: str) -> int:
    pair = load_pair(read_pair(name))
    watch, sampling, documents = Stopwatch(pair.device), Sampling(temperature), prompts(pair, DOCUMENTS)
    methods = {kind: built(kind, pair, watch, combine=combine) for kind in METHODS}
    for method in methods.values():
        decode(method, pair, documents[0], watch, sampling)
    raced = race(methods, pair, documents, watch, sampling, prefill=1)
    texts = [[text.tokens for text in raced.texts[kind]] for kind in METHODS]
    same = temperature > 0 or all(text == texts[0] for text in texts)
    combining, judging, whole = own_seconds(methods["cos"], pair, documents, watch, sampling)
    print(
        f"{name}, {combine}, T = {temperature:g}: combining takes {combining / whole:.1%} of the time of cos, ", end=""
    )
    print(f"judging (with it) {judging / whole:.1%}")
    standard = [(kind, "ensemble") for kind in ("cos", "cos-sd", "cos-naive")]
    guaranteed = raced.print_speedups("  ", *standard, ("cos", "cos-sd"))["cos", "ensemble"]
    if not same:
        print("  some greedy texts are not the standard's")
    return int(combining / whole > BOUND or not same or guaranteed is None or guaranteed.high < 1)


def own_seconds(method, pair, documents, watch, sampling) -> tuple[float, float, float]:
    """Decode once more with clocks inside: seconds of combining, of judging, and of all decoding."""
    combining: list[float] = []
    judging: list[float] = []
    places = [(KeyedCombination, name, combining) for name in ("rows", "proposal", "combined")]
    with clocked(*places, (Collaboration, "judge", judging)):
        texts = [decode(method, pair, one, watch, sampling, at) for at, one in enumerate(documents)]
    return sum(combining), sum(judging), sum(text.decode_seconds for text in texts)


if __name__ == "__main__":
    sys.exit(main())
