"""What the small files of a model may say before anything is built of it: sizes, token ids, and texts that grow.

transformers and tokenizers take such files at their word: a million layers are built one by one, and a tokenizer makes
room for each id up to the largest one.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specbench.base.untrusted import brief, is_file, read_object
from specbench.config import UserError

MOST_SMALL = 2**28  # bytes of a file other than the weights; the tokenizer of Gemma has 33 MB
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".onnx")
LAYERS = re.compile(r"(^|_)n?_?(layers?|blocks?)$")
MOST_LAYERS = 2000
MOST_SIZE = 2**27  # of any other number in config.json that says how large something is
SIZES = re.compile(r"(_size|_dim|_heads|_experts|_positions?|_embeddings|^d_.+|^n_.+|^num_(?!param).+)$")
SPARE = 2**16  # ids beyond four times the number of tokens: reserved ones leave holes
MOST_GROWTH = 256  # times that a text may grow when it is normalized or decoded
MOST_ENDS = 1000  # ids in a list of end tokens: each one is looked for in each text
ENDS = ("eos_token_id", "bos_token_id", "pad_token_id")
STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def check_limits(folder: Path, name: str) -> None:
    """Raise UserError if a file of a model's folder is larger, or says something larger, than any model needs."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.endswith(WEIGHTS) and path.stat().st_size > MOST_SMALL:
            raise UserError(f"{name}: {path.name} has {path.stat().st_size:,} bytes; only weights are so large")
    for file in ("config.json", "generation_config.json"):
        if is_file(folder / file):
            settings = read_object(folder / file)
            _check_ends(settings, f"{name}: {file}")
            _check_sizes(settings, f"{name}: {file}")
    if is_file(folder / "tokenizer.json"):
        _check_tokenizer(read_object(folder / "tokenizer.json", MOST_SMALL), f"{name}: tokenizer.json")
    if is_file(folder / "tokenizer_config.json"):
        settings = read_object(folder / "tokenizer_config.json")
        longest, added = settings.get("model_max_length"), settings.get("added_tokens_decoder")
        if not isinstance(longest, int | float | None):
            raise UserError(
                f"{name}: tokenizer_config.json: model_max_length is {brief(repr(longest))}; it must be a number"
            )
        ids = [int(key) for key in added if str(key).isdecimal()] if isinstance(added, dict) else []
        if ids and max(ids) > 2**24:
            raise UserError(f"{name}: tokenizer_config.json names the token id {max(ids)}, which no vocabulary has")


def _check_ends(settings: dict[str, Any], where: str) -> None:
    for key in ENDS:
        value = settings.get(key)
        ids = value if isinstance(value, list) else [value]
        if value is not None and not all(type(each) is int and -1 <= each < 2**31 for each in ids):
            raise UserError(f"{where}: {key} is {brief(repr(value))}; it must be a token id, or a list of them")
        if len(ids) > MOST_ENDS:
            raise UserError(f"{where}: {key} lists {len(ids)} ids, and at most {MOST_ENDS} are read")


def _check_sizes(settings: Any, where: str) -> None:
    """Check all numbers in a configuration, at any depth, by their names."""
    for key, value in _items(settings):
        most = MOST_LAYERS if LAYERS.search(key) else MOST_SIZE if SIZES.search(key) else None
        size = len(value) if isinstance(value, list) and key == "layer_types" else value
        most = MOST_LAYERS if key == "layer_types" else most
        if most and isinstance(size, int | float) and size > most:
            raise UserError(f"{where}: {key} is {brief(str(size))}, and at most {most} is read")


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """The keys of objects at any depth, with their values."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from ((str(key), inner) for key, inner in part.items())
            waiting += part.values()
        elif isinstance(part, list):
            waiting += [inner for inner in part if isinstance(inner, dict | list)]


def _check_tokenizer(tokenizer: dict[str, Any], where: str) -> None:
    """Check that ids are about as many as the tokens, and that no text grows without measure."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = [each for each in vocabulary.values() if isinstance(each, int)] if isinstance(vocabulary, dict) else []
    count = len(vocabulary) if isinstance(vocabulary, dict | list) else 0
    added = [each for each in tokenizer.get("added_tokens") or [] if isinstance(each, dict)]
    ids += [each["id"] for each in added if isinstance(each.get("id"), int)]
    if ids and max(ids) > 4 * (count + len(added)) + SPARE:
        raise UserError(f"{where}: it has {count + len(added)} tokens, and one has the id {max(ids)}")
    growth = 1
    for step in STEPS:
        for key, value in _items({step: tokenizer.get(step)}):
            if key in ("content", "prepend") and isinstance(value, str):
                growth *= max(1, len(value))
            if growth > MOST_GROWTH:
                raise UserError(
                    f"{where}: its {step} puts texts into texts that may grow more than {MOST_GROWTH} times"
                )
