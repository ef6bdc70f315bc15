"""The eager runtime: transformers' own forward and growing cache, for every model on every device."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specbench.base.errors import UserError
from specbench.engine.models.identity import has_more_than_keys
from specbench.engine.runtimes.types import Chaining, Lent, Reads, Runtime

if TYPE_CHECKING:
    from specbench.engine.runtimes.states import StateChains

CHUNK = 2048  # tokens of a prompt that are read at a time: what layers and masks take does not grow with its length


class Eager(Runtime):
    """The reference runtime, which the others are compared with."""

    name = "eager"

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def runner(self, model: PreTrainedModel) -> "EagerRunner | StateChains":
        if not has_more_than_keys(model):
            return EagerRunner(model)
        from specbench.engine.runtimes.states import StateChains, mixers

        found = mixers(model)
        return StateChains(model, found, found.way)


EAGER: Runtime = Eager()


class EagerRunner(Chaining):
    """Every layer caches the whole sequence, sliding-window layers too, so that any of them can roll back.

    The window is applied by the attention mask.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._cache = DynamicCache()
        self._length = 0

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        if keep == 1 and reads is None and features is None and ids.shape[0] > CHUNK:
            *_, (logits, _) = parts = [self.forward(part, 1, hidden, None, None) for part in ids.split(CHUNK)]
            return logits, torch.cat([states for _, states in parts if states is not None]) if hidden else None
        # For a causal chain the model makes mask and positions itself.
        out = self.model(
            ids[None],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=keep,
            return_dict=True,
            output_hidden_states=bool(hidden),
            **(attention(reads.allowed, reads.places, self.model) if reads else {}),
            **({} if features is None else {"features": features[None]}),
        )
        self._length += ids.shape[0]
        states = [out.hidden_states[i] for i in hidden]
        if any(state.dim() != 3 for state in states):
            kind = type(self.model).__name__
            raise UserError(f"{kind} keeps several states of a token; choose a method that reads no hidden states")
        return out.logits[0], torch.cat([state[0] for state in states], -1) if states else None

    def save(self) -> list[tuple[Tensor, Tensor]]:
        return [(layer.keys.clone(), layer.values.clone()) for layer in self._cache.layers]

    @torch.inference_mode()
    def load(self, saved: list[tuple[Tensor, Tensor]]) -> None:
        for index, (keys, values) in enumerate(saved):
            self._cache.update(keys, values, index)
        self._length = saved[0][0].shape[2]

    def lend(self, layers: Sequence[int]) -> Lent:
        cached = [self._cache.layers[index] for index in layers]
        return [(layer.keys[0].clone(), layer.values[0].clone()) for layer in cached]

    def borrow(self, lent: Lent) -> None:
        self.load([(keys[None], values[None]) for keys, values in lent])

    def truncate(self, length: int) -> None:
        if length == 0:
            self._cache = DynamicCache()
        elif length < self._length:
            self._cache.crop(length - self._length)
        self._length = length

    @torch.inference_mode()
    def move(self, start: int, path: Sequence[int]) -> None:
        kept = start + len(path)
        at = torch.tensor(path, device=self.model.device) + start
        for layer in self._cache.layers:
            for cached in (layer.keys, layer.values):
                cached[:, :, start:kept] = cached[:, :, at]
        self.truncate(kept)


def attention(allowed: Tensor, places: Tensor, model: PreTrainedModel, fed: Tensor | None = None) -> dict[str, object]:
    """The mask and positions, as arguments of a model, of n tokens that read the tokens `allowed` [n, S] or [B, n, S].

    `places` [S] or [B, S] are positions, and `fed` [B, n] those of the n tokens, by default the last of S. Returns
    position ids [B, n] and additive masks [B, 1, n, S]; sliding-window layers have their own mask, by position.
    """
    if allowed.dim() == 2:
        allowed, places = allowed[None], places[None]
    config = model.config.get_text_config()
    kinds, window = getattr(config, "layer_types", None) or (), getattr(config, "sliding_window", None)
    fed = places[:, -allowed.shape[1] :] if fed is None else fed
    masks: dict[str, object] = {"full_attention": additive(allowed, model.dtype)[:, None]}
    if window and (not kinds or "sliding_attention" in kinds):
        near = allowed & (fed[:, :, None] - places[:, None] < window)
        masks["sliding_attention"] = additive(near, model.dtype)[:, None]
    if "chunked_attention" in kinds:  # Llama 4: of the earlier tokens those in the same chunk of positions
        chunk = config.attention_chunk_size
        same = allowed & (fed[:, :, None] // chunk == places[:, None] // chunk)
        masks["chunked_attention"] = additive(same, model.dtype)[:, None]
    mask: object = masks if kinds and len(masks) > 1 else [*masks.values()][-1]
    return {"attention_mask": mask, "position_ids": fed}


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask that is added to scores, of the same shape: 0 where `allowed`, else -inf."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, -torch.inf)
