"""A model that gets another tokenizer: embeddings of the tokens that both have, means for others."""

import oracle
import torch
from tokenizers import Tokenizer
from tokenizers import models as kinds
from transformers import PreTrainedTokenizerFast

from pocket.narrow import with_tokens


def tokenizer(words: str, merges=()) -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(words.split())}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(kinds.BPE(vocabulary, list(merges))), eos_token="e")


def test_tokens_begin_as_what_spells_them():
    before = tokenizer("a b c ab e", [("a", "b")])
    after = tokenizer("c b e bc abc", [("b", "c")])
    model = oracle.tiny("llama", vocab=5, tie_word_embeddings=True)
    _, b, c, ab, e = model.get_input_embeddings().weight.detach().float().clone()
    made = with_tokens(model, before, after)
    rows = made.get_input_embeddings().weight.float()
    expected = torch.stack([c, b, e, (b + c) / 2, (ab + c) / 2])
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-6)
    assert made.config.vocab_size == 5 and made.config.eos_token_id == 2
    assert made.get_output_embeddings().weight.data_ptr() == made.get_input_embeddings().weight.data_ptr()
