"""Load a tokenizer without its model, and what a tokenizer is, whatever folder it lies in."""

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedTokenizerBase

from specbench.base.hashes import short_hash
from specbench.base.hub import offline
from specbench.base.untrusted import read_object
from specbench.config import ModelSpec, UserError
from specbench.engine.models.folders import BUNDLED, model_folder

MOST_MEMORY = 4 << 30  # bytes of the process that tries a tokenizer; those of Gemma and Llama 3 take less than 1 GiB
MOST_SECONDS = 120
OUT_OF_MEMORY = 3
# What the library raises for a damaged file is told when it is loaded here; only a want of memory is.
TRIAL = f"""
import resource, sys
from tokenizers import Tokenizer
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    made = Tokenizer.from_file(sys.argv[1])
    made.decode(made.encode("A text of some words, 12 + 30 = 42. " * 20).ids)
except MemoryError:
    sys.exit({OUT_OF_MEMORY})
except Exception as error:
    sys.exit({OUT_OF_MEMORY} if "memory" in str(error) else 0)
"""
NOT_OF_A_TOKENIZER = {"name_or_path", "is_local", "local_files_only"}


def load_tokenizer(
    spec: ModelSpec, trust_remote_code: bool = False, state: str | None = None
) -> PreTrainedTokenizerBase:
    """A model's tokenizer without the model. Raises UserError if it cannot be loaded.

    `state` is the hash of what it was, if that is known; loading one that is still the same takes a fraction of the
    time.
    """
    folder = model_folder(spec, weights=False)
    if not folder.is_relative_to(BUNDLED):
        _try_apart(folder, spec.model)
    if state is not None and (same := _of_named_class(folder)) is not None and tokenizer_hash(same) == state:
        return same
    try:
        with offline():
            from transformers import AutoTokenizer  # with torch and models of all kinds

            loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        if not isinstance(loaded, PreTrainedTokenizerBase):  # its files name another class of transformers
            raise UserError(
                f"{spec.model}: its tokenizer_config.json names {type(loaded).__name__}, which is no tokenizer"
            )
        return loaded
    except (UserError, MemoryError):
        raise
    except Exception as error:  # as above; tokenizers raises nothing narrower
        reason = reason_of(error)
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{spec.model}: its tokenizer brings code of its own; to let it run, add --trust-remote-code"
            ) from None
        raise UserError(f"cannot load the tokenizer of {spec.model}: {reason}; put tokenizer.json next to it") from None


def _of_named_class(folder: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a folder as the class of transformers that its files name, which need not be the right one."""
    try:
        name = str(read_object(folder / "tokenizer_config.json").get("tokenizer_class"))
        kind = getattr(transformers, name, None)
        if isinstance(kind, type) and issubclass(kind, PreTrainedTokenizerBase):
            with offline():
                return kind.from_pretrained(folder, trust_remote_code=False)  # type: ignore[attr-defined]
    except Exception:  # as below, where it is told
        pass
    return None


def _try_apart(folder: Path, name: str) -> None:
    """Load a folder's tokenizer.json in a process of its own, once, and code a short text.

    Raises UserError if that takes more memory or time than any tokenizer does: here it would take this machine's.
    """
    file = folder / "tokenizer.json"
    if file.is_file():
        status = file.stat()
        _try_file(file, name, status.st_size, status.st_mtime_ns)


@cache
def _try_file(file: Path, name: str, size: int, changed: int) -> None:
    """The same of a file of this size and time of change."""
    what = f"{name}: its tokenizer.json takes more than"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", TRIAL, str(file), str(MOST_MEMORY)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{what} {MOST_SECONDS} s to load; fetch the model again") from None
    if done.returncode < 0 or done.returncode == OUT_OF_MEMORY:
        raise UserError(f"{what} {MOST_MEMORY >> 30} GiB of memory to load; fetch the model again")


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
