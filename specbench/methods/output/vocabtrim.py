"""VocabTrim: a draft that offers only the target's most frequent tokens (arXiv 2506.22694). Lossless.

They are counted in texts of the target (`specbench train --method vocabtrim`). The setting `output=vocabtrim` does the
same in sps, lossy, fly, reflective, csd and judge.
"""

from pathlib import Path

import torch
from pydantic import Field, StrictFloat, StrictInt
from torch import Tensor

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.models.draft_output import Output, trimmed
from specbench.engine.models.heads import Head, command, read_head, shipped
from specbench.engine.models.pair import Pair
from specbench.engine.types import Method, Watch
from specbench.methods.chains.sps import SpS
from specbench.methods.drafting import lighter_drafter, number_or_share

KIND = "vocabtrim"


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")
    tokens: StrictInt | StrictFloat = Field(
        description="the most frequent tokens that the draft keeps: how many, or a share of all (with a point: 0.25)"
    )
    counts: str = Field(description="counts of the target's tokens: a file, or `auto` (what ships with the pair)")

    _some = number_or_share("tokens")


def output(settings: Settings, pair: Pair) -> Output:
    """The pair's draft model with fewer tokens in its output layer. Raises UserError for counts that do not fit."""
    draft = pair.session("draft").model  # raises UserError for a pair without a draft model
    head = find_counts(settings.counts, pair)
    ids = pair.own_ids("draft", ranked(head.tensors["counts"], pair.eos_ids))
    total = min(pair.vocabulary, len(ids))
    wanted = settings.tokens if isinstance(settings.tokens, int) else max(1, round(settings.tokens * total))
    if wanted > total:
        raise UserError(f"{KIND}: tokens={wanted}, but the draft of {pair.name} has {total}; choose fewer")
    kept = ids[: max(wanted, len(pair.eos_ids))]
    try:
        return Output(trimmed(draft, torch.tensor(sorted(kept))), {"counts": head.hashes()["head"]})
    except ValueError as error:
        raise UserError(f"{KIND}: {error}; choose another draft") from None


def ranked(counts: Tensor, first: frozenset[int]) -> list[int]:
    """All token ids: those of `first`, then by falling count [V]; among equals the lower id, which BPE merged first."""
    weighed = counts.clone()
    weighed[[i for i in first if i < len(weighed)]] = torch.inf
    return weighed.argsort(descending=True, stable=True).tolist()


def find_counts(setting: str, pair: Pair) -> Head:
    """The counts that a setting names. They belong to the target alone, so any draft may use them."""
    path = shipped(KIND, pair) if setting == "auto" else Path(setting)
    if path is None:
        raise UserError(
            f"no token counts ship with {pair.name}; count some ({command(KIND, pair)}) "
            f"and name the file by --set {KIND}.counts=FILE"
        )
    return read_head(path, KIND, pair, {"counts": (pair.vocabulary,)})


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    layer = pair.runtime.once(("vocabtrim", settings.model_dump_json()), lambda: output(settings, pair))
    return SpS(pair.session("target", watch), lighter_drafter(layer, pair, watch), settings.gamma)
