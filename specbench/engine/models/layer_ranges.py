"""A part of a model's layers over the same weights: what enters it is given, and what leaves it is read."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.engine.models.layer_skip import replaced, twin


class Tap:
    """The states [n, D] that are put into the first layer of a range, and those that left its last one."""

    def __init__(self, tuples: bool) -> None:
        self.tuples = tuples  # the model's layers return tuples, whose first member are the states
        self.given: Tensor | None = None
        self.left: Tensor | None = None

    def put(self, hidden_states: Tensor, *others: Any, **named: Any) -> Any:
        """The forward of a layer that is left out, and whose output is what was given."""
        assert self.given is not None
        return self._returned(self.given[None])

    def pass_on(self, hidden_states: Tensor, *others: Any, **named: Any) -> Any:
        """The forward of a layer that is left out."""
        return self._returned(hidden_states)

    def take(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        """A hook after the last layer of the range."""
        self.left = (output[0] if isinstance(output, tuple) else output)[0]

    def _returned(self, states: Tensor) -> Any:
        return (states,) if self.tuples else states


def layer_list(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The decoder layers of a model, and their name in its decoder. Raises ValueError if they cannot run apart."""
    config = model.config.get_text_config()
    if getattr(config, "num_kv_shared_layers", None):
        raise ValueError("its layers share keys and values")
    for name, part in model.get_decoder().named_children():
        if isinstance(part, nn.ModuleList) and len(part) == config.num_hidden_layers:
            return name, part
    raise ValueError("it has no list of decoder layers")


def layer_range(model: PreTrainedModel, first: int, last: int, tap: Tap) -> PreTrainedModel:
    """The model with its layers `first` … `last` - 1 only, counted from 0, over the same weights.

    A new object; `model` does not change. Unless `first` is 0, the states that enter are those that `tap` was given; it
    takes those that leave. Other layers compute nothing and leave the cache as it is. All else is the model's own code:
    its masks and positions, and the final norm and output of what left the range.
    """
    name, layers = layer_list(model)
    parts = []
    for index, layer in enumerate(layers):
        part = twin(layer, {})
        if not first <= index < last:
            vars(part)["forward"] = tap.put if index == 0 else tap.pass_on
        elif index == last - 1:
            part.register_forward_hook(tap.take)
        parts.append(part)
    decoder = model.get_decoder()
    path = next(name for name, module in model.named_modules() if module is decoder)
    return replaced(model, path.split("."), twin(decoder, {name: nn.ModuleList(parts)}))  # type: ignore[return-value]


def output_of(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    """The model's final norm and output layer, of states [n, D] that left any of its layers: logits [n, V].

    Gradients pass through. Raises ValueError as of `layer_list`.
    """
    _, layers = layer_list(model)
    returned: list[bool] = []
    hook = layers[0].register_forward_hook(lambda layer, inputs, output: returned.append(isinstance(output, tuple)))
    with torch.no_grad():
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=False)
    hook.remove()
    tap = Tap(returned[0])
    rest = layer_range(model, len(layers), len(layers), tap)

    def say(states: Tensor) -> Tensor:
        tap.given = states
        ids = torch.zeros(1, len(states), dtype=torch.long, device=states.device)
        logits: Tensor = rest(ids, use_cache=False, return_dict=True).logits[0]
        tap.given = None
        return logits

    return say
