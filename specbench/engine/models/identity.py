"""What a model is, whatever folder it lies in: how its weights are stored, what it caches, and its hashes."""

import hashlib
import inspect
import json
import sys
from typing import Any

from torch import Tensor, uint8
from transformers import Cache, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicIndexedLayer, LinearAttentionCacheLayerMixin

from specbench.base.hashes import short_hash
from specbench.engine.models.tokenizer import tokenizer_hash, without

PACKED_BYTES = "packed_bytes"  # an attribute of a weight in float: what its numbers and scales take where it is read
# Of configurations: where a model lies, what wrote it, and the type that its weights were cast to.
NOT_OF_A_MODEL = {"_name_or_path", "transformers_version", "dtype", "torch_dtype"}


def is_plain(tensor: Tensor) -> bool:
    """True if a weight's numbers are what it computes with; a quantised one has parts."""
    return not hasattr(tensor, "__tensor_flatten__")


def stored(tensor: Tensor) -> list[Tensor]:
    """The plain tensors that hold a weight: itself, or the numbers and scales of a quantised one."""
    if is_plain(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return [part for name in names for part in stored(getattr(tensor, name))]


def stored_bytes(tensor: Tensor) -> int:
    """The bytes that forwards read of a weight."""
    packed: int | None = getattr(tensor, PACKED_BYTES, None)
    return packed or sum(part.numel() * part.element_size() for part in stored(tensor))


def is_quantized(model: PreTrainedModel) -> bool:
    """True if some weights are in fewer bits than the model computes in."""
    if getattr(model, "hf_quantizer", None) is not None:
        return True
    return not all(is_plain(weight) for weight in model.parameters())


def brought_in_fewer_bits(settings: Any) -> dict[str, Any]:
    """The `quantization_config` of a checkpoint; empty for one in float."""
    text = settings.get_text_config()
    config = getattr(settings, "quantization_config", None) or getattr(text, "quantization_config", None) or {}
    return config if isinstance(config, dict) else config.to_dict()


def has_more_than_keys(model: PreTrainedModel) -> bool:
    """True if a model caches more than keys and values of each token."""
    if "state" in inspect.signature(model.forward).parameters or own_cache(model):
        return True
    config = model.config.get_text_config(decoder=True)
    kinds = {*(getattr(config, "layer_types", None) or ())}
    if not kinds or kinds <= {"full_attention", "sliding_attention", "chunked_attention"}:
        return False
    layers = DynamicCache(config=model.config).layers
    return any(isinstance(layer, LinearAttentionCacheLayerMixin | DynamicIndexedLayer) for layer in layers)


def own_cache(model: PreTrainedModel) -> type[Any] | None:
    """The class of cache that the model's own file of transformers defines; usually there is none."""
    home = sys.modules[type(model).__module__]
    for found in vars(home).values():
        if isinstance(found, type) and issubclass(found, Cache) and found.__module__ == home.__name__:
            return type(found.__name__, (_Longest, found), {})
    return None


class _Longest:
    """A cache of which some layers hold no keys: its length is that of the longest."""

    layers: list[Any]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max((layer.get_seq_length() for layer in self.layers), default=0)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0


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
