"""What a model and its tokenizer are, whatever folder they lie in: the hashes that a manifest keeps."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import uint8
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specbench.base.hashes import short_hash
from specbench.engine.models.quantize import stored

# Of configurations: where a model lies, what wrote it, and the type that its weights were cast to.
NOT_OF_A_MODEL = {"_name_or_path", "transformers_version", "dtype", "torch_dtype"}
NOT_OF_A_TOKENIZER = {"name_or_path", "is_local", "local_files_only"}


def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of a tokenizer's tokens and ids, as 16 hexadecimal digits.

    Added tokens are left out: within a family, reserved ids have different names (in Llama 3 and 3.2, for example).
    """
    added = tokenizer.get_added_vocab()
    pairs = sorted((token, i) for token, i in tokenizer.get_vocab().items() if token not in added)
    return short_hash(json.dumps(pairs))


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """A hash of all that a tokenizer is when it was just loaded: merges, rules, added tokens, templates, settings.

    None for a tokenizer, such as one of a model's own code, that cannot be saved.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            tokenizer.save_pretrained(folder)
        except Exception:  # of code that is not ours
            return None
        digest = hashlib.sha256()
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            content = path.read_bytes()
            if path.name == "tokenizer_config.json":
                content = json.dumps(_without(json.loads(content), NOT_OF_A_TOKENIZER), sort_keys=True).encode()
            digest.update(f"{path.relative_to(folder)} {len(content)} ".encode() + content)
        return digest.hexdigest()[:16]


def configuration_hash(configuration: Any) -> str:
    """A hash of a model's configuration or of its settings of generation, wherever they were read from."""
    return short_hash(json.dumps(_without(configuration.to_dict(), NOT_OF_A_MODEL), sort_keys=True, default=str))


def weights_hash(model: PreTrainedModel) -> str:
    """A hash of all weights by name."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        for part in stored(tensor.detach()):
            digest.update(part.cpu().contiguous().view(-1).view(uint8).numpy().data)
    return digest.hexdigest()[:16]


def loaded_hashes(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, str | None]:
    """The hashes of what a model's folder holds beside its weights, taken when it was just loaded."""
    return {
        "config_hash": configuration_hash(model.config),
        "generation_hash": configuration_hash(model.generation_config),
        "tokenizer_state": tokenizer_hash(tokenizer),
    }


def _without(value: Any, names: set[str]) -> Any:
    """A JSON-like value without some keys, at all depths."""
    if isinstance(value, Mapping):
        return {str(key): _without(part, names) for key, part in value.items() if key not in names}
    return [_without(part, names) for part in value] if isinstance(value, list | tuple) else value
