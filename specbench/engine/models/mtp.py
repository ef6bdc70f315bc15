"""The multi-token-prediction modules of a checkpoint, as transformers computes them, and the tokens that they draft.

Module k reads the embedding of a token and the state of the token k + 1 places before, each through its norm, side by
side; a decoder layer follows, a norm, and the target's own output layer (DeepSeek-V3, arXiv 2412.19437, equations 21 to
23). The first state is the target's after its final norm, as in vLLM and transformers.
"""

import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.base.untrusted import brief
from specbench.config import UserError
from specbench.engine.ids import to_device

if TYPE_CHECKING:
    from collections.abc import Iterator


def load_modules(target: PreTrainedModel, folder: str = "auto") -> Any:
    """The MtpModel of a target, of its own checkpoint or of a folder beside it. Raises UserError."""
    kind, config = type(target).__name__, target.config.get_text_config()
    try:
        from transformers.modeling_layers import MtpModel
    except ImportError:
        raise UserError("mtp needs transformers 5.23 or later; pip install -U transformers") from None
    if getattr(target.config, "quantization_config", None) is not None:
        raise UserError(f"mtp: {kind} is in fewer bits and its modules are not; load the checkpoint in bfloat16")
    if not getattr(config, "num_mtp_layers", None) and _names_modules(target):  # Qwen3-Next, 3.5 and 3.6
        config.num_mtp_layers = getattr(config, "mtp_num_hidden_layers", None) or 1
        config.mtp_layer_types = ["full_attention"] * config.num_mtp_layers
    if not (count := getattr(config, "num_mtp_layers", None)):
        raise UserError(f"mtp: {kind} announces no modules for more tokens; choose another target or method")
    where = config.name_or_path if folder == "auto" else folder
    where = where or target.config.name_or_path
    if folder != "auto" and not Path(folder).is_dir():
        raise UserError(f"mtp: there is no folder {folder}; name one with modules by --set mtp.modules=FOLDER")
    with _from(target, where):
        try:
            model = MtpModel.from_pretrained(target, device_map={"": target.device}, trust_remote_code=False)
        except (RuntimeError, ValueError, KeyError, OSError, TypeError, AttributeError) as error:
            reason = _reason(error)
            raise UserError(
                f"mtp: {kind} announces {count} modules, and {where or 'its checkpoint'} has not all their weights, or "
                f"others ({reason}); name a folder that has them by --set mtp.modules=FOLDER"
            ) from None
    return model.to(target.dtype).requires_grad_(False).eval()


def _reason(error: Exception) -> str:
    """What transformers says of weights that it cannot load, with the first of those that are missing."""
    found = re.search(r"\['([^']+)'", str(error))
    return f"it lacks {found[1]}" if found and "missing" in str(error) else brief(error)


def _names_modules(target: PreTrainedModel) -> bool:
    """True if transformers knows weights of modules by their name, and drops them."""
    return any("mtp" in name for name in getattr(target, "_keys_to_ignore_on_load_unexpected", None) or ())


@contextmanager
def _from(target: PreTrainedModel, folder: str) -> "Iterator[None]":
    """Let transformers read the modules from a folder, by names for this number of layers.

    Its own names are for the published numbers alone.
    """
    config, names = target.config.get_text_config(), target._keys_to_ignore_on_load_unexpected
    before, first = target.config.name_or_path, config.num_hidden_layers
    numbers = "|".join(map(str, range(first, first + config.num_mtp_layers)))
    target.config.name_or_path = folder
    target._keys_to_ignore_on_load_unexpected = [rf"(^|\.)mtp\.|layers\.({numbers})\."]
    try:
        yield
    finally:
        target.config.name_or_path, target._keys_to_ignore_on_load_unexpected = before, names


class Modules:
    """The modules with the cache of one text. `unread` [m, D] are states of tokens after which nothing was drafted yet.

    With several modules, each drafts one token; a single one goes on from its own states (`steps`).
    """

    def __init__(self, model: Any, steps: int) -> None:
        self.model, self.steps, self.count = model, steps, model.num_mtp_layers

    def begin(self, states: Tensor) -> None:
        """Forget the last text. `states` [n, D] are the target's after a prompt's tokens."""
        from transformers.cache_utils import MtpCache

        self.cache = MtpCache(config=self.model.config)
        self.cache.activate_past_recording()
        self.states = self.unread = states
        self.stale = 0  # tokens that every module must read again

    def follow(self, states: Tensor) -> None:
        """Take the target's states [m, D] of the last committed token before its draft, and of the accepted ones."""
        self.unread = states
        if self.count > 1:  # a module has read drafts of the modules before it, of which some may be rejected
            self.stale = min(self.count, len(self.states)) if len(states) < self.count else 0
            self.states = torch.cat([self.states, states])

    def draft(self, context: list[int], vocabulary: int) -> Tensor:
        """The likeliest tokens [steps] after a text whose last token the target has not read."""
        model, cache, width = self.model, self.cache, len(self.unread) + self.stale
        if self.stale:
            cache.crop(-self.stale)
            self.unread = self.states[-width:]
        ids = to_device(context[-width:], self.unread.device)[None]
        places = torch.arange(len(context) - width, len(context), device=ids.device)[None]
        states, tokens = self.unread[None], []
        for step in range(self.steps):
            states = model.forward_layer(min(step, self.count - 1), states, places, cache, input_ids=ids)
            logits = model._project_to_logits(states[:, -1:])[0, :, :vocabulary]
            tokens.append(logits.argmax(-1))
            ids, places = torch.cat([ids[:, 1:], tokens[-1][None]], 1), places + 1
            if self.count == 1:
                ids, places, states = ids[:, -1:], places[:, -1:], states[:, -1:]
        if self.count == 1:
            cache.crop(1 - self.steps)
        self.stale = 0
        return torch.cat(tokens)
