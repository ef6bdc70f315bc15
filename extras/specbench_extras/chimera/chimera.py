"""Chimera: a head that encodes three tokens and reads the target's last states drafts trees (2402.15758). Lossless.

The trees are EAGLE-2's (arXiv 2406.16858), as of `eagle3`.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.ids import to_device
from specbench.engine.models.eagle_head import config_of, copied
from specbench.engine.models.heads import Head, load_once, placed, refuse_damaged
from specbench.engine.models.pair import Pair
from specbench.engine.session import LAST
from specbench.engine.types import Method, Scored, Watch
from specbench.methods.heads.eagle3 import Eagle3, EagleDrafter, check_target, head_session
from specbench.methods.heads.eagle3 import Settings as Base
from specbench_extras.chimera.chimera_head import ChimeraHead

KIND = "chimera"


class Settings(Base):
    """Those of eagle3."""


class ChimeraDrafter(EagleDrafter):
    """Drafts as EAGLE's head does. The head's cache holds the target's states of all tokens that the target has read.

    The last committed token is encoded again with each tree, since the target has not read it; then its encoding leaves
    the cache with the drafted ones, and the target's state takes its place.
    """

    head: ChimeraHead

    @torch.inference_mode()
    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        assert scored.hidden is not None
        states = self.head.fuse(scored.hidden)
        if len(tokens) > 1:
            self.session.forward(tokens[:-1], keep=1, features=self.head.standing(states[:-1]))
        self.unread = states[-1:]  # [n, D]: the target's states after tokens that the head has not read

    def features(self, context: list[int]) -> Tensor:
        """Of the tokens that the target has read, then of the last committed one."""
        before = to_device([context[max(0, len(context) - 3)], context[-2]], self.head.device)
        return torch.cat([self.head.standing(self.unread), self.head.begin(before, self.unread[-1:])])


def chimera_head(
    head: Head, target: PreTrainedModel, vocabulary: int, where: torch.device | None = None
) -> ChimeraHead:
    """The head in a file, in the target's type and on its device, or on the device `where`.

    Raises UserError where its tensors disagree.
    """
    with refuse_damaged(head.kind):
        inner = head.tensors["fast_layer1.0.mlp.gate_proj.weight"].shape[0]
        model = new_head(target, vocabulary, inner, head.trained["config"], where)
        model.load_state_dict(dict(head.tensors))
    placed(model, target, where)
    return model


def new_head(
    target: PreTrainedModel, vocabulary: int, inner: int, stored: dict[str, Any], where: torch.device | None = None
) -> ChimeraHead:
    """A head with torch's first weights, in float32; the embedding is copied to `where`. Errors as of `config_of`."""
    config = config_of(target.config.get_text_config().hidden_size, inner, vocabulary, stored)
    with torch.random.fork_rng(devices=[]):
        return ChimeraHead(config, *copied([target.get_input_embeddings()], where))


def loaded(settings: Settings, pair: Pair) -> tuple[ChimeraHead, dict[str, str]]:
    """The head of a file, or the one that ships with the pair, and its hashes. Raises UserError if it does not fit."""
    target, vocabulary, where = check_target(pair, KIND), pair.vocabulary, pair.draft_device
    return load_once(settings.head, KIND, pair, None, lambda head: chimera_head(head, target, vocabulary, where))


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for a head that does not fit it."""
    model, hashes = loaded(settings, pair)
    session = head_session(model, pair, watch)
    drafter = ChimeraDrafter(model, session, LAST, settings.total_tokens, settings.top_k, settings.depth)
    return Eagle3(pair.session("target", watch), drafter, hashes)
