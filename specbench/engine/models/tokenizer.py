"""Load a tokenizer without its model, and what a tokenizer is, whatever folder it lies in."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specbench.base.hashes import short_hash
from specbench.base.hub import offline
from specbench.config import ModelSpec, UserError
from specbench.engine.models.folders import model_folder

NOT_OF_A_TOKENIZER = {"name_or_path", "is_local", "local_files_only"}


def load_tokenizer(spec: ModelSpec, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """A model's tokenizer without the model. Raises UserError if it cannot be loaded."""
    folder = model_folder(spec, weights=False)
    try:
        with offline():
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # as above; tokenizers raises nothing narrower
        reason = reason_of(error)
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{spec.model}: its tokenizer brings code of its own; to let it run, add --trust-remote-code"
            ) from None
        raise UserError(f"cannot load the tokenizer of {spec.model}: {reason}; put tokenizer.json beside it") from None


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
                content = json.dumps(without(json.loads(content), NOT_OF_A_TOKENIZER), sort_keys=True).encode()
            digest.update(f"{path.relative_to(folder)} {len(content)} ".encode() + content)
        return digest.hexdigest()[:16]


def reason_of(error: Exception) -> str:
    """An error of a library in a line, with its kind where that says more than the message does."""
    kind = "" if isinstance(error, OSError | ValueError | ImportError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())}"[:200]


def without(value: Any, names: set[str]) -> Any:
    """A JSON-like value without some keys, at all depths."""
    if isinstance(value, Mapping):
        return {str(key): without(part, names) for key, part in value.items() if key not in names}
    return [without(part, names) for part in value] if isinstance(value, list | tuple) else value
