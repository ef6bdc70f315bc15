"""MTP: multi-token-prediction modules draft a chain (DeepSeek-V3, arXiv 2412.19437). Lossless.

They are those of the target's checkpoint, or one that was trained for a target without (FastMTP, arXiv 2509.18362).
With several modules each drafts a token; a single one is applied again and again, as engines do. One whose layer is
plain attention and a plain MLP drafts as EAGLE's heads do; all others are computed by transformers. An assistant of
Gemma 4 drafts in their place, from what the target has cached.
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.drafters import Drafter
from specbench.engine.models.assistant import USUAL, Assistant, check_reads, is_assistant, load_assistant
from specbench.engine.models.heads import fingerprint, load_once, shipped
from specbench.engine.models.mtp import KIND, check_kind, load_modules, stored_modules
from specbench.engine.models.mtp_drafts import Modules
from specbench.engine.models.mtp_head import as_head
from specbench.engine.models.pair import Pair
from specbench.engine.session import LAST, Session
from specbench.engine.speculate import Speculative
from specbench.engine.trees import exact_draft
from specbench.engine.types import Draft, Method, Sampling, Scored, Stateless, Verdict, Watch
from specbench.methods.heads.eagle3 import EagleDrafter, head_session


class Settings(Base):
    steps: int = Field(
        ge=0, le=64, description="tokens of a draft; 0: one for each module, or as many as a trained one has learned"
    )
    head: str = Field(
        description="the modules: a trained file, a folder of a checkpoint (of an assistant of Gemma 4, too), or "
        "`auto` (the file that ships with the pair, else those of the target's own checkpoint)"
    )


class MtpDrafter(Drafter):
    """Drafts the modules' likeliest tokens, at any temperature, for the target to test as point masses."""

    reads = LAST

    def __init__(self, modules: Modules | Assistant, vocabulary: int, watch: Watch) -> None:
        self.modules, self.vocabulary, self.watch = modules, vocabulary, watch

    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        assert scored.hidden is not None
        self.modules.begin(scored.hidden)

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        with self.watch.forward("draft", len(self.modules.unread), len(context) - 1, self.modules.steps):
            return Draft(self.modules.draft(context, self.vocabulary), None)

    @torch.inference_mode()
    def observe(self, scored: Scored, verdict: Verdict) -> None:
        assert scored.hidden is not None
        self.modules.follow(scored.hidden[: verdict.accepted + 1])


class Mtp(Speculative, Stateless):
    """Speculative decoding with the modules' chains."""

    lossless = True
    accept = staticmethod(exact_draft)  # EAGLE's drafter makes trees, if only of one branch

    def __init__(self, target: Session, drafter: MtpDrafter | EagleDrafter, steps: int, hashes: dict[str, str]) -> None:
        self.target, self.drafter, self.hashes = target, drafter, hashes
        self.gamma = steps
        self.reach = 1 + self.gamma


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for a target without modules, or without all their weights."""
    pair.need_one_device("mtp has modules next to the target's output layer")
    if pair.runtime.name == "llamacpp":
        raise UserError("mtp reads hidden states, which --runtime llamacpp does not give; use --runtime eager")
    if settings.head != "auto" and is_assistant(Path(settings.head)):
        return assisted(settings, pair, watch)
    check_kind(pair.models["target"])
    (model, usual), hashes = loaded(settings.head, pair)
    count = model.num_mtp_layers
    if count > 1 and settings.steps > count:
        raise UserError(f"mtp.steps={settings.steps}: this target has {count} modules of a token each; give no more")
    steps = settings.steps or usual
    head = pair.runtime.once((KIND, settings.head, "head"), lambda: as_head(model, pair.vocabulary))
    drafter: MtpDrafter | EagleDrafter
    if head:
        drafter = EagleDrafter(head, head_session(head, pair, watch), LAST, steps + 1, 1, steps - 1)
    else:
        drafter = MtpDrafter(Modules(model, steps), pair.vocabulary, watch)
    return Mtp(pair.session("target", watch), drafter, steps, hashes)


def assisted(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """With an assistant of Gemma 4. Raises UserError for one that does not fit the target."""
    target = pair.session("target", watch)

    def load() -> tuple[Any, dict[str, str]]:
        model = load_assistant(Path(settings.head), target.model)
        check_reads(model, target.model)
        return model, {"head": fingerprint(model)}

    model, hashes = pair.runtime.once((KIND, settings.head), load)
    steps = settings.steps or model.generation_config.num_assistant_tokens or USUAL
    return Mtp(target, MtpDrafter(Assistant(model, target, steps), pair.vocabulary, watch), steps, hashes)


def loaded(head: str, pair: Pair) -> tuple[tuple[Any, int], dict[str, str]]:
    """The modules that a setting names, how many tokens they usually draft, and their hash; rows of a batch share them.

    Raises UserError.
    """
    target = pair.models["target"]
    trained = shipped(KIND, pair) is not None if head == "auto" else not Path(head).is_dir()
    if trained:
        return load_once(head, KIND, pair, None, lambda stored: stored_modules(stored, target))

    def of_checkpoint() -> tuple[tuple[Any, int], dict[str, str]]:
        model = load_modules(target, head)
        return (model, model.num_mtp_layers), {"head": fingerprint(model)}

    return pair.runtime.once((KIND, head), of_checkpoint)
