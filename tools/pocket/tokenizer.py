"""The pair's tokenizer: byte-level BPE that keeps digits apart and, like Llama's, adds a begin token."""

import itertools
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from pocket.corpus import stretches

VOCABULARY = 2048
BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
CONTEXT = 8192
# A word, one digit, or a run of signs, each with the space before it; otherwise white space.
PIECES = r" ?\p{L}+| ?\d| ?[^\s\p{L}\d]+|\s+(?!\S)|\s+"


def train_tokenizer(
    folder: Path, documents: int = 40_000, seed: int = 1, vocabulary: int = VOCABULARY
) -> PreTrainedTokenizerFast:
    """Learn the merges from generated training documents and save a tokenizer of so many tokens to `folder`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BEGIN, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (prompt + text for s in itertools.islice(stretches("train", seed), documents) for prompt, text in s)
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, bpe.token_to_id(BEGIN))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(folder)
    return tokenizer
