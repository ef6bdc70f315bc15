"""The modules of a model that carry a state from token to token, found by a trial, and how they read a block in pieces.

Recurrent layers (Mamba, gated delta nets, linear attention, RWKV) and short convolutions keep no keys of each token. A
copy of their state is taken between two pieces of a block, so all other modules still read the block at once.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionCacheLayerMixin,
)

from specbench.engine.clock import now
from specbench.engine.models.identity import own_cache

NAMES = ("past_key_values", "cache_params", "state")  # what models call their cache
UPDATES = ("update_conv_state", "update_recurrent_state", "set_linear_cache")  # of a cache, by modules with a state

Place = tuple[Any, Any]  # a container, and the key of a state in it
State = list[tuple[Place, Tensor]]


@dataclass
class Counted:
    """What rollbacks of a model's sequences cost. Copies are made within forwards, whose times hold theirs."""

    copies: int = 0  # of the state of all modules at a token
    bytes: int = 0
    seconds: float = 0.0  # of the host
    again: int = 0  # positions that were read again


class Mixers:
    """What a model needs beside its own forward so that a sequence can roll back."""

    way = ""  # how it rolls back, once that was tried
    pieces: Sequence[int] = ()  # how many tokens of the block each piece has; none: all at once
    after: Callable[[nn.Module, int], None]  # called by each module after a piece, with the tokens that it has read

    def __init__(self, model: PreTrainedModel) -> None:
        self.accepted = frozenset(inspect.signature(model.forward).parameters)
        self.counted = Counted()
        self.argument = next(name for name in NAMES if name in self.accepted)
        self.modules = self._found(model)
        self.inside = [module for module in self.modules if hasattr(module, "rg_lru")]  # what holds its state itself
        for module in self.modules:
            if getattr(module, "time_step_limit", (0.0,))[0]:
                # With a floor, blocks would apply it and single tokens would not.
                vars(module)["time_step_limit"] = (0.0, float("inf"))
            module.forward = partial(self._in_pieces, module, module.forward)

    def new_cache(self, model: PreTrainedModel) -> Any:
        """An empty cache. Layers with a sliding window keep all tokens; the window is applied by the mask."""
        if self.argument == "state":
            return rwkv_state(model)
        if own := own_cache(model):
            return own()
        cache = DynamicCache(config=model.config)
        for index, layer in enumerate(cache.layers):
            if isinstance(layer, LinearAttentionAndSlidingWindowAttentionLayer):
                cache.layers[index] = LinearAttentionAndFullAttentionLayer(layer.number_of_states)
            elif isinstance(layer, DynamicSlidingWindowLayer):
                cache.layers[index] = DynamicLayer()
        return cache

    def _found(self, model: PreTrainedModel) -> list[nn.Module]:
        """The modules that hold a state, or that write one into the cache when they read a few tokens."""
        found = {
            module: None for module in model.modules() if hasattr(module, "time_mix_key") or hasattr(module, "rg_lru")
        }
        if found:
            return list(found)
        cache = self.new_cache(model)
        running: list[nn.Module] = []

        def noted(update: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            found[running[-1]] = None
            return update(*args, **kwargs)

        for name in UPDATES:
            if hasattr(cache, name):
                setattr(cache, name, partial(noted, getattr(cache, name)))
        hooks = []
        for module in model.modules():
            hooks.append(module.register_forward_pre_hook(lambda module, _: running.append(module)))
            hooks.append(module.register_forward_hook(lambda *_: (running.pop(), None)[1]))
        try:
            with torch.inference_mode():
                model(torch.tensor([[1, 2, 3]], device=model.device), use_cache=True, **{self.argument: cache})
        finally:
            for hook in hooks:
                hook.remove()
        return list(found)

    def _in_pieces(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A module's output [1, n, D], or a tuple that begins with it, of a block that is read in pieces."""
        if not self.pieces:
            return forward(*args, **kwargs)
        width, at, outputs = sum(self.pieces), 0, []
        for size in self.pieces:
            cut = partial(_rows, first=at, last=at + size, width=width)
            outputs.append(forward(*map(cut, args), **{name: cut(value) for name, value in kwargs.items()}))
            at += size
            self.after(module, at)
        if isinstance(outputs[0], tuple):
            return (torch.cat([output[0] for output in outputs], 1), *outputs[-1][1:])
        return torch.cat(outputs, 1)


def _rows(value: Any, first: int, last: int, width: int) -> Any:
    """Some rows of a tensor [1, width, …]; anything else as it is."""
    return value[:, first:last] if isinstance(value, Tensor) and value.shape[1:2] == (width,) else value


def rwkv_state(model: PreTrainedModel) -> list[Tensor]:
    """The empty state of RWKV [1, D, layers]: what feed-forward and attention read last, two sums, their maximum."""
    shape = 1, model.config.hidden_size, model.config.num_hidden_layers
    types = [model.dtype] * 2 + [torch.float32] * 3
    state = [torch.zeros(shape, dtype=kind, device=model.device) for kind in types]
    state[4] -= 1e30
    return state


def places(module: nn.Module, cache: Any) -> list[Place]:
    """Where the states of a module are."""
    if hasattr(module, "rg_lru"):  # RecurrentGemma
        return [(vars(module), "conv1d_state"), (vars(module.rg_lru), "recurrent_states")]
    if hasattr(module, "time_mix_key"):  # RWKV
        mine = cache[1:] if hasattr(module, "time_decay") else cache[:1]
        return [(state, (slice(None), slice(None), module.layer_id)) for state in mine]
    if hasattr(cache, "linear_cache"):  # MiniMax
        return [(cache.linear_cache, module.layer_idx)]
    layer = cache.layers[module.layer_idx]
    kinds = layer.conv_states, layer.recurrent_states
    return [(kind, key) for kind in kinds for key, state in kind.items() if state is not None]


def state(module: nn.Module, cache: Any, counted: Counted) -> State:
    """A copy of the state of a module."""
    began = now()
    copied = [((container, key), container[key].clone()) for container, key in places(module, cache)]
    counted.seconds += now() - began
    counted.bytes += sum(kept.nbytes for _, kept in copied)
    return copied


def restore(states: State) -> None:
    """Give modules a state back, in place; it must not be used again, as they write into it."""
    for (container, key), kept in states:
        container[key] = kept


def cut(cache: Any, count: int) -> None:
    """Drop the last `count` tokens of the layers that cache keys, in place."""
    for layer in getattr(cache, "layers", ()):
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            if isinstance(layer, DynamicLayer):
                DynamicLayer.crop(layer, -count)
        else:
            layer.crop(-count)
