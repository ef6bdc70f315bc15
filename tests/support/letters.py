"""A tokenizer of five tokens for models of five, and the constraints on its texts by their definition."""

import itertools
from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEXTS = ("a", "b", "c", "ab", "")  # of the tokens
END = 4
PATTERN = "(a|bc|ab){2,4}"
WORDS = ("a", "bc", "ab")


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2, "ab": 3, "<end>": END}, [("a", "b")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>")


@cache
def language() -> frozenset[str]:
    """All texts of PATTERN."""
    return frozenset("".join(words) for count in (2, 3, 4) for words in itertools.product(WORDS, repeat=count))


@cache
def allowed(answer: tuple[int, ...]) -> tuple[bool, ...] | None:
    """Which tokens may follow an answer under PATTERN; None if the answer has ended, or is not allowed itself."""
    text = "".join(TEXTS[token] for token in answer)
    if END in answer or not any(whole.startswith(text) for whole in language()):
        return None
    begun = [any(whole.startswith(text + more) for whole in language()) for more in TEXTS[:END]]
    return (*begun, text in language())
