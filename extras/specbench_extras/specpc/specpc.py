"""SpecPC: the target reads a shortened prompt, of the tokens that the draft model looks at. Lossy.

Draft-based approximate inference (arXiv 2506.08373). The draft model reads the whole prompt and one token that it adds.
What its last rows of attention look at stays in the prompt, with its neighbours and the prompt's end; the rest is
dropped, and positions are counted again. Then the target decodes, with or without drafts. So the prompt is approximate,
and decoding is not: with drafts, texts follow the law of the target alone on that prompt.
"""

from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.types import Method, Round, Sampling, Stateless, Watch
from specbench.methods.chains.sps import SpS
from specbench.methods.chains.vanilla import Vanilla


class Settings(Base):
    kept: int = Field(ge=1, description="tokens of the shortened prompt; a shorter one stays as it is")
    window: int = Field(ge=1, description="tokens at the prompt's end that are kept, and whose attention decides")
    skip: int = Field(ge=0, description="first layers of the draft whose attention is not looked at; one always is")
    pool: int = Field(ge=1, description="tokens over which a score spreads: the highest of so many neighbours counts")
    neighbours: int = Field(ge=0, description="tokens on either side of a chosen one that are kept with it")
    gamma: int = Field(ge=0, description="draft tokens a round (γ); 0: the target decodes alone")


@torch.inference_mode()
def looked_at(model: PreTrainedModel, prompt: list[int], window: int, skip: int) -> Tensor:
    """How much each token of a prompt is looked at [n], on the host: the highest attention of the deciding rows.

    These are of the last `window` tokens and of the token that the model adds, in all heads of all layers but the first
    `skip`. Rows weigh more towards the end, from 1 / (window + 1) to 1 (our inference).
    """
    config, ids = model.config.get_text_config(), torch.tensor([prompt], device=model.device)
    before, cache = max(0, len(prompt) - window), DynamicCache()
    usual = config._attn_implementation
    config._attn_implementation = "eager"  # others give no weights
    try:
        if before:
            model(ids[:, :before], past_key_values=cache, logits_to_keep=1)
        out = model(ids[:, before:], past_key_values=cache, output_attentions=True)
        added = model(out.logits[:, -1:].argmax(-1), past_key_values=cache, output_attentions=True)
    finally:
        config._attn_implementation = usual
    first = min(skip, len(out.attentions) - 1)
    layers = zip(out.attentions[first:], added.attentions[first:], strict=True)
    rows = [torch.cat([F.pad(most[0], (0, 1)), last[0]], 1) for most, last in layers]  # each [heads, window + 1, n + 1]
    weighted = torch.stack(rows).amax((0, 1)).float()
    weighted *= torch.arange(1, len(weighted) + 1, device=weighted.device)[:, None] / len(weighted)
    return weighted.amax(0)[: len(prompt)].cpu()


def chosen(scores: Tensor, settings: Settings) -> list[int]:
    """The places of the tokens that stay, rising: the window, and by falling score [n] others with their neighbours."""
    end = max(0, len(scores) - settings.window)
    reach = settings.pool // 2
    padded = F.pad(scores[None, None], (reach, settings.pool - 1 - reach), value=0.0)
    spread = F.max_pool1d(padded, settings.pool, stride=1)[0, 0, :end]
    places = set(range(end, len(scores)))
    for place in spread.sort(descending=True, stable=True).indices.tolist():
        for near in range(max(0, place - settings.neighbours), min(end, place + settings.neighbours + 1)):
            if len(places) >= settings.kept:
                return sorted(places)
            places.add(near)
    return sorted(places)


class SpecPC(Stateless):
    """Decode after a prompt that the draft model has shortened. Its reading is part of the prefill."""

    lossless = False

    def __init__(self, inner: Method, model: PreTrainedModel, settings: Settings, watch: Watch) -> None:
        self.inner, self.model, self.settings, self.watch = inner, model, settings, watch
        self.reach = inner.reach

    def shortened(self, prompt: list[int]) -> list[int]:
        if len(prompt) <= self.settings.kept:
            return prompt
        with self.watch.forward("draft", len(prompt) + 1, 0):
            scores = looked_at(self.model, prompt, self.settings.window, self.settings.skip)
        return [prompt[place] for place in chosen(scores, self.settings)]

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return self.inner.rounds(self.shortened(prompt), sampling, rng)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError for a draft with another tokenizer, and for a window that leaves no room."""
    pair.need_one_tokenizer("specpc chooses among the target's own tokens")
    if settings.window >= settings.kept:
        raise UserError(f"specpc: kept ({settings.kept}) must be more than window ({settings.window}); change one")
    target, draft = pair.session("target", watch), pair.session("draft", watch)
    inner = SpS(target, ModelDrafter(draft), settings.gamma) if settings.gamma else Vanilla(target)
    return SpecPC(inner, draft.model, settings, watch)
