"""What a model is, whatever folder it lies in: the hashes that a manifest keeps."""

import hashlib
import json
from typing import Any

from torch import uint8
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specbench.base.hashes import short_hash
from specbench.engine.models.quantize import stored
from specbench.engine.models.tokenizer import tokenizer_hash, without

# Of configurations: where a model lies, what wrote it, and the type that its weights were cast to.
NOT_OF_A_MODEL = {"_name_or_path", "transformers_version", "dtype", "torch_dtype"}


def configuration_hash(configuration: Any) -> str:
    """A hash of a model's configuration or of its settings of generation, wherever they were read from."""
    return short_hash(json.dumps(without(configuration.to_dict(), NOT_OF_A_MODEL), sort_keys=True, default=str))


def weights_hash(model: PreTrainedModel) -> str:
    """A hash of all weights by name."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        for part in stored(tensor.detach()):
            digest.update(part.cpu().contiguous().view(-1).view(uint8).numpy().data)
    return digest.hexdigest()[:16]


def loaded_hashes(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, str | None]:
    """The hashes of what a model's folder holds next to its weights, taken when it was just loaded."""
    return {
        "config_hash": configuration_hash(model.config),
        "generation_hash": configuration_hash(model.generation_config),
        "tokenizer_state": tokenizer_hash(tokenizer),
    }
