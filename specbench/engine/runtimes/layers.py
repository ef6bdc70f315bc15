"""Runners whose layers can run apart, by runtime: eager and static have them."""

from transformers import PreTrainedModel

from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.eager_layers import eager_layers
from specbench.engine.runtimes.static import STATIC
from specbench.engine.runtimes.static_layers import StaticLayers
from specbench.engine.runtimes.types import LayerRunner, Runtime, Unsupported


def alone(runtime: Runtime) -> Runtime:
    """The runtime that computes the forwards of one sequence as this one does, but never with those of others."""
    if isinstance(runtime, Batched):
        return STATIC if runtime.base == STATIC.name else EAGER
    return runtime


def layer_runner(runtime: Runtime, model: PreTrainedModel) -> LayerRunner:
    """A new, empty sequence of a model whose layers can run apart; in a batch it is computed alone.

    Raises Unsupported if the runtime cannot do that, or not with this model.
    """
    single = alone(runtime)
    if single is STATIC:
        return StaticLayers(STATIC.lean(model))
    if single is EAGER:
        return eager_layers(model)
    raise Unsupported(f"the {runtime.name} runtime runs no layers apart; use --runtime static or eager")
