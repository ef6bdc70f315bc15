"""REST: drafts are retrieved from a datastore by the last tokens of the text (arXiv 2311.08252). Lossless."""

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.datastore import DEPTH, Datastore, find_datastore
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.retrieval import Retrieval
from specbench.decoding.session import Session
from specbench.decoding.speculate import speculate
from specbench.decoding.trees import exact_tree
from specbench.decoding.types import Method, Round, Sampling, Watch
from specbench.methods.drafting import Drafted
from specbench.models import Pair


class Settings(Base):
    datastore: str = Field(min_length=1, description="a folder of build-datastore, or auto: what ships for the pair")
    longest: int = Field(ge=1, le=DEPTH, description="tokens of the longest suffix that is looked up")
    shortest: int = Field(ge=1, description="tokens of the shortest one")
    hits: int = Field(ge=1, description="places of each shard of the datastore that are read")
    gamma: int = Field(ge=1, description="tokens of a continuation: levels of the draft (γ)")
    nodes: int = Field(ge=1, description="the most retrieved tokens of a draft")
    ngram: Literal[0, 3] = Field(description="3: what is left of nodes goes to tri-grams of the datastore; 0: off")
    fusion: Literal["none", "draft"] = Field(description="draft: the draft model's chain is merged into the tree")
    fusion_gamma: int = Field(ge=1, description="tokens of that chain")

    @field_validator("shortest")
    @classmethod
    def fits(cls, shortest: int, info: ValidationInfo) -> int:
        longest: int | None = info.data.get("longest")
        if longest is not None and shortest > longest:
            raise PydanticCustomError("bounds", f"{shortest} is more than longest ({longest}); change one of them")
        return shortest

    def reach(self) -> int:
        """The most tokens of a round, the last committed one among them."""
        return 1 + self.nodes + (min(self.gamma, self.fusion_gamma) if self.fusion == "draft" else 0)


class Rest(Drafted):
    """Retrieve a tree, verify it by one target forward; one draw of the target for each of its nodes.

    (The official code draws for each branch anew where branches share a beginning, which is not lossless.)
    """

    lossless = True

    def __init__(self, target: Session, drafter: Retrieval, settings: Settings, contents: str) -> None:
        self.target, self.drafter, self.settings, self.contents = target, drafter, settings, contents
        self.reach = settings.reach()

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return speculate(self.target, self.drafter, exact_tree, self.settings.gamma, prompt, sampling, rng)

    def inputs(self) -> dict[str, str]:
        return {**super().inputs(), "datastore": self.contents}


def drafter(settings: Settings, tokenizer: str | None, device: torch.device) -> Retrieval:
    """Retrieval alone, without models; `tokenizer` is the hash that the datastore must have (None: not checked)."""
    if settings.fusion != "none":
        raise UserError("fusion=draft needs the draft model, and none is loaded here; --set METHOD.fusion=none")
    return _retrieval(settings, find_datastore(settings.datastore, tokenizer), device)


def _retrieval(
    settings: Settings, store: Datastore, device: torch.device, model: ModelDrafter | None = None
) -> Retrieval:
    return Retrieval(
        store,
        settings.longest,
        settings.shortest,
        settings.hits,
        settings.nodes,
        device,
        trigrams=settings.ngram == 3,
        model=model,
        fusion=settings.fusion_gamma,
    )


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Of the pair the target, and the draft only for fusion. Raises UserError for a datastore that does not fit."""
    store = find_datastore(settings.datastore, pair.tokenizer_hash)
    if store.about.largest >= pair.vocabulary:
        raise UserError(
            f"the datastore {store.folder} holds the token {store.about.largest}, which {pair.name} has no logits for "
            f"({pair.vocabulary} tokens); build one with the pair's own tokenizer"
        )
    if settings.reach() >= pair.context:
        raise UserError(
            f"rest: nodes {settings.nodes} makes rounds of up to {settings.reach()} tokens, but {pair.name} reads "
            f"{pair.context}; choose fewer"
        )
    model = ModelDrafter(pair.session("draft", watch)) if settings.fusion == "draft" else None
    retrieval = _retrieval(settings, store, pair.device, model)
    return Rest(pair.session("target", watch), retrieval, settings, store.about.contents)
