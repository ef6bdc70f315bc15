"""Pairs of tiny models in folders, and their tokenizer of words."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specbench.config import ModelSpec, PairSpec

WORDS = 90  # of the tests' tokenizers; the models have a few embedding rows more


def tokenizer(last: str = "last", extra: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """A word tokenizer of `WORDS` tokens and `extra` special ones added behind; its end token has id 1."""
    vocabulary = {"<unknown>": 0, "<end>": 1} | {f"w{i}": i for i in range(2, WORDS - 1)} | {last: WORDS - 1}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", unk_token="<unknown>")
    made.add_special_tokens({"additional_special_tokens": list(extra)})
    return made


def pair_of(target: ModelSpec, draft: ModelSpec | None = None) -> PairSpec:
    return PairSpec(name="tiny", description="", target=target, draft=draft)
