"""What prompt lookup costs the host next to the target's forward, on short and on long contexts.

Run by `make bench`; exits with 1 where a round's look-up takes more than one percent of a forward of the bundled
target, or more than twice as long behind a long context as behind a short one. Texts are bundled documents.
"""

import itertools
import statistics
import sys

import torch
from benches import prompts

from specbench.config import load_method
from specbench.config import load_pair as read_pair
from specbench.engine.clock import now
from specbench.engine.models.pair import load_pair
from specbench.engine.types import Sampling
from specbench.methods.lookup.pld import Settings, drafter

CONTEXTS = (1_000, 8_000, 30_000)
READS = 8_000  # tokens; the bundled pair reads 8,192
ROUNDS, STEP = 400, 3  # look-ups behind each context, and the tokens that a round commits
SHARE, GROWTH = 0.01, 2.0


def main() -> int:
    pair = load_pair(read_pair("pocket"), device="cpu")
    endless = itertools.cycle(i for document in prompts(pair, 150) for i in document)
    text = list(itertools.islice(endless, CONTEXTS[-1] + ROUNDS * STEP))
    settings = Settings(**load_method("pld").values)
    microseconds = {}
    for length in CONTEXTS:
        building, microseconds[length], result = look_up(settings, text, length)
        print(
            f"{length} tokens: indexed in {1000 * building:.1f} ms; a round's look-up {microseconds[length]:.1f} µs "
            f"({result:.0%} find something)"
        )
    forward = read(pair, text[:READS], settings.gamma)
    share = microseconds[READS] / forward
    growth = microseconds[CONTEXTS[-1]] / microseconds[CONTEXTS[0]]
    print(f"a forward of the target over {settings.gamma + 1} tokens behind {READS}: {forward / 1000:.1f} ms")
    print(f"the look-up is {share:.2%} of it (bound {SHARE:.0%})")
    print(f"at {CONTEXTS[-1]} tokens it takes {growth:.2f} times as long as at {CONTEXTS[0]} (bound {GROWTH:.2f})")
    return int(share > SHARE or growth > GROWTH)


def look_up(settings: Settings, text: list[int], length: int) -> tuple[float, float, float]:
    """Seconds to index a prompt, the median µs of a round's indexing and look-up, the share that found something."""
    drafting = drafter(settings, None, torch.device("cpu"))
    began = now()
    drafting.begin(text[:length])
    building = now() - began
    context, rng, result, times = text[:length], torch.Generator(), 0, []
    for at in range(length, length + ROUNDS * STEP, STEP):
        context += text[at : at + STEP]
        began = now()
        draft = drafting.propose(context, settings.gamma, Sampling(), rng)
        times.append(now() - began)
        result += len(draft.tokens) > 0
    return building, 1e6 * statistics.median(times), result / ROUNDS


def read(pair, context: list[int], gamma: int, count: int = 5) -> float:
    """The median µs of a target forward over a draft and the token before it."""
    session = pair.session("target")
    for start in range(0, len(context), 512):
        session.forward(context[start : start + 512], keep=1)
    times = []
    for _ in range(count):
        began = now()
        session.forward(context[: gamma + 1])
        times.append(now() - began)
        session.truncate(len(context))
    return 1e6 * statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
