"""transformers' MtpModel with what it lacks: names, numbers of layers, and layers with an index of what they read."""

import re
from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from specbench.config import UserError
from specbench.engine.models.mtp_names import INDEXED, Dialect


def model_class(dialect: Dialect) -> Any:
    """The class of a dialect's modules. Raises UserError for an older transformers."""
    try:
        from transformers.core_model_loading import WeightRenaming
        from transformers.masking_utils import create_causal_mask
        from transformers.modeling_layers import MtpModel as Base
    except ImportError:
        raise UserError("mtp needs transformers 5.23 or later; pip install -U transformers") from None

    class MtpModel(Base):  # type: ignore[misc]
        __module__ = Base.__module__  # by its own name and module, transformers finds the names that it knows

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            if dialect.layer == INDEXED:  # a layer of GLM-5 also returns what its index chose
                for layer in self.layers:
                    layer.mtp_block.register_forward_hook(_alone)

        @staticmethod
        def get_mtp_weights_regex(main_model: PreTrainedModel) -> re.Pattern[str]:
            """Names of any number of layers; transformers' are for the published numbers alone."""
            config = main_model.config.get_text_config()
            numbers = range(config.num_hidden_layers, config.num_hidden_layers + config.num_mtp_layers)
            return re.compile(rf"(^|\.)mtp[._]|layers\.({'|'.join(map(str, numbers))})\.")

        def get_weight_conversions(self, main_model: PreTrainedModel) -> list[Any]:
            own = [WeightRenaming(source_patterns=old, target_patterns=new) for old, new in dialect.names]
            return [*own, *super().get_weight_conversions(main_model)]

        def _adjust_missing_and_unexpected_keys(self, loading_info: Any) -> None:
            """transformers' step before it looks at what was loaded; it does not say which sizes are wrong."""
            super()._adjust_missing_and_unexpected_keys(loading_info)
            for name, stored, needed in sorted(loading_info.mismatched_keys):
                raise ValueError(f"{name} is {_size(stored)} and should be {_size(needed)}")

        def create_masks_for_mtp_layer(
            self, layer_idx: int, inputs_embeds: Any, mtp_cache: Any, position_ids: Any
        ) -> dict[str, Any]:
            if dialect.layer != INDEXED:
                return super().create_masks_for_mtp_layer(layer_idx, inputs_embeds, mtp_cache, position_ids)
            mask = create_causal_mask(
                config=self.config,
                inputs_embeds=inputs_embeds,
                attention_mask=None,
                past_key_values=mtp_cache,
                position_ids=position_ids,
                layer_idx=layer_idx,
                allow_is_causal_skip=False,
            )
            return {"attention_mask": mask}

    return MtpModel


def _size(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape))


def _alone(layer: nn.Module, read: Any, returned: Any) -> Any:
    """The states that a layer returned, without what may follow."""
    return returned[0] if isinstance(returned, tuple) else returned
