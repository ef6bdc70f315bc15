"""Two small tokenizers of the kinds that models have, and the translation of a draft from one to the other."""

import functools
import json

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers import models as kinds
from transformers import PreTrainedTokenizerFast

from specbench.engine.translate import Translation
from specbench_extras.bench.prompts import bundled_prompts

TEXTS = [prompt for family in ("gsm8k", "cnndm", "humaneval") for prompt in bundled_prompts(family, 30)]
LETTERS = "Zoë’s naïve café: 你好, 🎉 fin. "
SIZES = {"bytes": 420, "pieces": 380}


@functools.cache
def byte_level(size: int = SIZES["bytes"]) -> PreTrainedTokenizerFast:
    """As GPT-2's, without a begin token of its own in front of texts."""
    raw = Tokenizer(kinds.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>", "<|tool|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([*TEXTS, *[LETTERS] * 30], trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|endoftext|>")
    made.add_special_tokens({"additional_special_tokens": ["<|tool|>"]})
    return made


@functools.cache
def pieces(size: int = SIZES["pieces"]) -> PreTrainedTokenizerFast:
    """As Llama 2's: a space before each text, "▁" for spaces, bytes for what is unknown, and a begin token."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    raw = Tokenizer(kinds.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=names, show_progress=False)
    raw.train_from_iterator(TEXTS, trainer)
    state = json.loads(raw.to_str())
    state["pre_tokenizer"] = None
    parts = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    state["decoder"] = {"type": "Sequence", "decoders": parts}
    state["added_tokens"] = [one for one in state["added_tokens"] if one["id"] < 3]
    state["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


KINDS = {"bytes": byte_level, "pieces": pieces}


@functools.cache
def translation(target: str = "bytes", draft: str = "pieces") -> Translation:
    return Translation(KINDS[target](), KINDS[draft](), (SIZES[target], SIZES[draft]))
