"""EAGLE-2: a head that goes on with the target's last state drafts trees that grow where it is sure. Lossless.

The head is EAGLE's (arXiv 2401.15077), the trees are EAGLE-2's (arXiv 2406.16858), as of `eagle3`. Papers that train
the same head otherwise, or fuse its inputs otherwise, are recipes: HASS (arXiv 2408.15766), FSPAD (arXiv 2408.15562)
and Dovetail (arXiv 2412.18934).
"""

from typing import Literal

import torch
from pydantic import Field
from transformers import PreTrainedModel

from specbench.engine.models.eagle_head import config_of, copied
from specbench.engine.models.feature_head import FUSES, FeatureHead
from specbench.engine.models.heads import Head, load_once, placed, refuse_damaged
from specbench.engine.models.pair import Pair
from specbench.engine.session import LAST
from specbench.engine.types import Method, Watch
from specbench.methods.heads.eagle3 import Eagle3, EagleDrafter, check_target, head_session
from specbench.methods.heads.eagle3 import Settings as Base


class Settings(Base):
    recipe: Literal["eagle", "hass", "fspad", "dovetail"] = Field(
        description="whose recipe the head was trained by: heads of others are refused"
    )


def feature_head(
    head: Head, target: PreTrainedModel, vocabulary: int, where: torch.device | None = None
) -> FeatureHead:
    """The head in a file, in the target's type and on its device, or on the device `where`.

    Raises UserError where its tensors disagree.
    """
    with refuse_damaged(head.kind):
        fuse = head.trained["fuse"]
        if fuse not in FUSES:
            raise ValueError(f"it fuses by {fuse}")
        inner = head.tensors["layers.0.mlp.gate_proj.weight"].shape[0]
        model = new_head(target, vocabulary, fuse, inner, head.trained["config"], where)
        model.load_state_dict(dict(head.tensors))
    placed(model, target, where)
    return model


def new_head(
    target: PreTrainedModel,
    vocabulary: int,
    fuse: str,
    inner: int,
    stored: dict[str, object],
    where: torch.device | None = None,
) -> FeatureHead:
    """A head with torch's first weights, in float32; what it borrows is copied to `where`. Errors as of `config_of`."""
    config = config_of(target.config.get_text_config().hidden_size, inner, vocabulary, stored)
    with torch.random.fork_rng(devices=[]):
        borrowed = copied([target.get_input_embeddings(), target.get_output_embeddings()], where)
        return FeatureHead(config, fuse, *borrowed)


def loaded(settings: Settings, pair: Pair) -> tuple[FeatureHead, dict[str, str]]:
    """The head of a file, or the one that ships with the pair, and its hashes. Raises UserError if it does not fit."""
    target, vocabulary, where = check_target(pair, settings.recipe), pair.vocabulary, pair.draft_device
    kind = settings.recipe
    return load_once(settings.head, kind, pair, None, lambda head: feature_head(head, target, vocabulary, where))


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for a head that does not fit it."""
    model, hashes = loaded(settings, pair)
    session = head_session(model, pair, watch)
    drafter = EagleDrafter(model, session, LAST, settings.total_tokens, settings.top_k, settings.depth)
    return Eagle3(pair.session("target", watch), drafter, hashes)
