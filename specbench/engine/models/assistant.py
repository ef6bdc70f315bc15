"""Gemma 4's assistants: small models that read the target's keys and values, and have none of their own.

An assistant reads the embedding of a token and a state of the target's width, side by side; its layers attend to what
the target's last layer of each type has cached. All tokens of a draft have the place of the last committed token, and
each goes on from the state that the assistant gives for the one before.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.base.untrusted import brief, is_file, read_object
from specbench.config import ModelSpec, UserError
from specbench.engine.ids import to_device
from specbench.engine.models.load import load_model
from specbench.engine.session import LAST, Session

KINDS = ("gemma4_assistant", "gemma4_unified_assistant")  # of checkpoints
USUAL = 4  # tokens of a draft, if the checkpoint does not say


def is_assistant(folder: Path) -> bool:
    """True for the folder of a checkpoint of an assistant."""
    config = folder / "config.json"
    return is_file(config) and read_object(config).get("model_type") in KINDS


def load_assistant(folder: Path, target: PreTrainedModel) -> PreTrainedModel:
    """The assistant in a folder, in the target's type and on its device. Raises UserError if it is another's."""
    dtype = str(target.dtype).removeprefix("torch.")
    with all_shared():
        model = load_model(ModelSpec(model=str(folder)), target.device, dtype).model
    own, config, kind = model.config.get_text_config(), target.config.get_text_config(), type(target).__name__
    remedy = "name an assistant of this target by --set mtp.head=FOLDER"
    if lacking := sorted({*own.layer_types} - {*producers(target)}):
        raise UserError(f"mtp: {folder} reads keys of {lacking[0]} layers, and {kind} has none; {remedy}")
    for what, theirs, mine in (
        ("states of", model.config.backbone_hidden_size, config.hidden_size),
        ("a vocabulary of", own.vocab_size, config.vocab_size),
    ):
        if theirs != mine:
            raise UserError(f"mtp: {folder} reads {what} {theirs}, and {kind} has {mine}; {remedy}")
    return model.requires_grad_(False)


@contextmanager
def all_shared() -> Iterator[None]:
    """Let transformers make models whose layers all read keys of others; 5.23 asks for layers that make some.

    Raises UserError for an older transformers.
    """
    try:
        from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
        from transformers.models.gemma4_unified.configuration_gemma4_unified import Gemma4UnifiedTextConfig
    except ImportError:
        raise UserError("assistants of Gemma 4 need transformers 5.23 or later; pip install -U transformers") from None

    kept = {kind: vars(kind)["kv_sharing_modes"] for kind in (Gemma4TextConfig, Gemma4UnifiedTextConfig)}

    def modes(config: Any) -> list[str | None]:
        count = config.num_hidden_layers
        made: list[str | None] = (
            kept[type(config)].fget(config) if config.num_kv_shared_layers < count else ["reuse"] * count
        )
        return made

    for kind in kept:
        kind.kv_sharing_modes = property(modes)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        for kind, before in kept.items():
            kind.kv_sharing_modes = before  # type: ignore[method-assign]


def producers(target: PreTrainedModel) -> Mapping[str, int]:
    """The last layer of each type that caches keys and values of its own."""
    config = target.config.get_text_config()
    types = list(getattr(config, "layer_types", None) or ())
    own = types[: len(types) - (getattr(config, "num_kv_shared_layers", 0) or 0)]
    return {kind: index for index, kind in enumerate(own)}


class Assistant:
    """An assistant with the target's session, whose cache it reads. `unread` [1, D] is the target's last state."""

    def __init__(self, model: PreTrainedModel, session: Session, steps: int) -> None:
        self.model, self.session, self.steps = model, session, steps
        self.embed = session.model.get_input_embeddings()
        self.layers = producers(session.model)

    def begin(self, states: Tensor) -> None:
        """Take the target's states [n, D] after a prompt's tokens."""
        self.unread = states[-1:]

    follow = begin  # of the last committed token before its draft, and of the accepted ones

    def draft(self, context: list[int], vocabulary: int) -> Tensor:
        """The likeliest tokens [steps] after a text whose last token the target has not read."""
        lent = self.session.lend([*self.layers.values()]).cache
        shared = {kind: (keys[None], values[None]) for kind, (keys, values) in zip(self.layers, lent, strict=True)}
        token, state, tokens = to_device(context[-1:], self.unread.device), self.unread[None], []
        place = torch.full((1, 1), len(context) - 1, device=state.device)
        for _ in range(self.steps):
            read = torch.cat([self.embed(token[None]), state], -1)
            out: Any = self.model(inputs_embeds=read, position_ids=place, shared_kv_states=shared)
            token, state = out.logits[0, -1:, :vocabulary].argmax(-1), out.last_hidden_state
            tokens.append(token)
        return torch.cat(tokens)


def check_reads(model: PreTrainedModel, target: PreTrainedModel) -> None:
    """Draft a token after two. Raises UserError where the target's keys and values do not fit."""
    session = Session(target, "target")
    assistant = Assistant(model, session, 1)
    try:
        with torch.inference_mode():
            scored = session.forward([0, 1], hidden=LAST)
            assert scored.hidden is not None
            assistant.begin(scored.hidden)
            assistant.draft([0, 1, 0], session.vocabulary)
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise UserError(
            f"mtp: the assistant cannot read what {type(target).__name__} caches ({brief(error)}); name an assistant "
            "of this target by --set mtp.head=FOLDER"
        ) from None
