"""Layers that run apart at the eager runtime, by the model's own code."""

import weakref

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specbench.engine.models.identity import has_more_than_keys
from specbench.engine.models.layer_ranges import Tap, layer_list, layer_range
from specbench.engine.runtimes.eager import EagerRunner
from specbench.engine.runtimes.reference import off, tolerance
from specbench.engine.runtimes.types import Unsupported

CHECKED = 6  # tokens of the text that checks whether a model's layers can run apart


class LayersCache(DynamicCache):
    """A cache whose layers may have different lengths. Masks and positions follow layer `first`, not layer 0."""

    first = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return super().get_seq_length(max(layer_idx, self.first))

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return super().get_query_offset(max(layer_idx, self.first))

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return super().get_mask_sizes(query_length, max(layer_idx, self.first))


class EagerLayers(EagerRunner):
    """Each range of layers is a twin of the model that leaves out the others; all share one cache."""

    _cache: LayersCache

    def __init__(self, model: PreTrainedModel, tuples: bool) -> None:
        super().__init__(model)
        self._cache = LayersCache()
        self.layers = len(layer_list(model)[1])
        self._tap = Tap(tuples)
        self._ranges: dict[tuple[int, int], PreTrainedModel] = {}

    def cached(self, layer: int) -> int:
        return self._cache.get_seq_length(layer)

    @torch.inference_mode()
    def run(self, given: Tensor, first: int, last: int) -> Tensor:
        self._run(given, first, last)
        self._length = self._cache.get_seq_length(0)
        left, self._tap.left = self._tap.left, None
        assert left is not None
        return left

    @torch.inference_mode()
    def output(self, states: Tensor) -> Tensor:
        logits: Tensor = self._run(states, self.layers, self.layers, whole=True).logits
        return logits[0]

    def _run(self, given: Tensor, first: int, last: int, whole: bool = False):  # type: ignore[no-untyped-def]
        """The output of the model, or of its decoder alone, with some of the layers."""
        if (first, last) not in self._ranges:
            self._ranges[first, last] = layer_range(self.model, first, last, self._tap)
        model = self._ranges[first, last]
        ids = given if first == 0 else torch.zeros(given.shape[0], dtype=torch.long, device=given.device)
        self._tap.given = given if first else None
        self._cache.first = first
        try:
            run = model if whole else model.get_decoder()
            return run(ids[None], past_key_values=self._cache, use_cache=True, return_dict=True)
        finally:
            self._cache.first, self._tap.given = 0, None

    def truncate(self, length: int) -> None:
        if length == 0:
            self._cache = LayersCache()
        for layer in self._cache.layers:
            layer.crop(min(0, length - layer.get_seq_length()))
        self._length = length


_tuples: "weakref.WeakKeyDictionary[PreTrainedModel, bool]" = weakref.WeakKeyDictionary()


def eager_layers(model: PreTrainedModel) -> EagerLayers:
    """A runner of the model's layers. Raises Unsupported if they cannot run apart, which is tried once for a model."""
    if model not in _tuples:
        kind = type(model).__name__
        try:
            _tuples[model] = check(model)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # models that were not made for this fail in their own ways
            reason = " ".join(str(error).split())[:160]
            raise Unsupported(f"the layers of {kind} cannot run apart ({reason}); choose another method") from None
    return EagerLayers(model, _tuples[model])


@torch.inference_mode()
def check(model: PreTrainedModel) -> bool:
    """Whether the model's layers return tuples. Raises ValueError if layers apart give other logits than the model."""
    if has_more_than_keys(model):
        raise ValueError("they cache more than keys and values")
    tuples: list[bool] = []
    layer = layer_list(model)[1][0]
    hook = layer.register_forward_hook(lambda layer, inputs, output: tuples.append(isinstance(output, tuple)))
    ids = torch.arange(CHECKED, device=model.device)
    try:
        expected = model(ids[None], use_cache=False, return_dict=True).logits[0].float()
    finally:
        hook.remove()
    runner, half = EagerLayers(model, tuples[0]), CHECKED // 2
    middle = (runner.layers + 1) // 2
    first = runner.run(ids, 0, middle)  # the first layers have read all tokens before the others begin
    rows = [first[:half], first[half:]]
    if middle < runner.layers:
        rows = [runner.run(states, middle, runner.layers) for states in rows]
    logits = torch.cat([runner.output(states) for states in rows]).float()
    if not off(logits, expected) <= tolerance(model):
        raise ValueError("they then give other logits")
    return tuples[0]
