"""The bound of all draft lengths: stop just before each disagreement (SpecDec++, arXiv 2405.19715, Theorem 4.1).

Lossless, greedy only. It knows the text beforehand, which no real method does; so its prefill, in which it finds that
out, is long, and only its decode time means something.
"""

from pydantic import Field

from specbench.decoding.lengths import Lengths, Oracle
from specbench.decoding.types import Method, Watch
from specbench.methods.drafting import Bounded
from specbench.methods.sps import adaptive
from specbench.models import Pair


class Settings(Bounded):
    tokens: int = Field(ge=1, description="how much of a text it knows, prefill's token included")


def lengths(settings: Settings, pair: Pair) -> Lengths:
    pair.need_one_tokenizer("the oracle foretells what the draft says by letting it read the target's tokens")
    return Oracle(pair.session("target"), pair.session("draft"), pair.eos_ids, settings.tokens)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return adaptive(settings, lengths(settings, pair), pair, watch)
