"""EAGLE-3: a trained head that reads the target's hidden states drafts trees (arXiv 2503.01840). Lossless."""

from collections.abc import Iterator

import torch
from pydantic import Field
from transformers import PreTrainedModel

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.decoding.eagle import EagleDrafter
from specbench.decoding.session import Session
from specbench.decoding.speculate import speculate
from specbench.decoding.types import Method, Round, Sampling, Stateless, Watch
from specbench.eagle_head import EagleHead, config_of, layers_read
from specbench.heads import Head, find_head
from specbench.models import Pair
from specbench.runtimes.choose import beside

KIND = "eagle3"


class Settings(Base):
    total_tokens: int = Field(ge=2, description="tokens of a tree at most, the last committed one included")
    top_k: int = Field(ge=1, description="children of a node, and nodes of a level that go on; 1: a chain")
    depth: int = Field(ge=0, description="levels of the tree behind the first one")
    head: str = Field(description="trained head: a file, or `auto` (the one that ships with the pair)")


# What a head file holds, by the names of the released checkpoints; -1: sizes that are checked together below.
SHAPES = {
    **{f"midlayer.self_attn.{name}_proj.weight": (-1, -1) for name in "qkvo"},
    **{f"midlayer.mlp.{name}_proj.weight": (-1, -1) for name in ("gate", "up", "down")},
    **{f"midlayer.{name}.weight": (-1,) for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
    "fc.weight": (-1, -1),
    "norm.weight": (-1,),
    "lm_head.weight": (-1, -1),
    "d2t": (-1,),
}


class Eagle3(Stateless):
    """Speculative decoding with the head's trees."""

    lossless = True

    def __init__(self, target: Session, drafter: EagleDrafter, hashes: dict[str, str]) -> None:
        self.target, self.drafter, self.hashes = target, drafter, hashes
        width = min(drafter.top_k, drafter.head.config.vocab_size)
        self.reach = 1 + min(drafter.most, width + drafter.depth * width**2)

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        drafter = self.drafter
        levels = drafter.depth + 1
        return speculate(
            self.target, drafter, drafter.accept, levels, prompt, sampling, rng, drafter.score, prefill=drafter.prefill
        )

    def inputs(self) -> dict[str, str]:
        return dict(self.hashes)


def check_target(pair: Pair) -> PreTrainedModel:
    """The target, if a head can read it. Raises UserError."""
    target = pair.models["target"]
    width, embedded = target.config.get_text_config().hidden_size, target.get_input_embeddings().weight.shape[-1]
    if width != embedded:
        raise UserError(
            f"eagle3 reads embeddings and hidden states of one width, but {type(target).__name__} has {embedded} and "
            f"{width}; choose another target or method"
        )
    return target


def eagle_head(head: Head, target: PreTrainedModel, vocabulary: int) -> EagleHead:
    """The head of a file, on the target's device and in its type. Raises UserError where its tensors disagree."""
    tensors = {name: tensor for name, tensor in head.tensors.items() if name != "d2t"}
    offsets = head.tensors["d2t"]
    ids = torch.arange(len(offsets)) + offsets.long()
    inner, drafted = tensors["midlayer.mlp.gate_proj.weight"].shape[0], tensors["lm_head.weight"].shape[0]
    width = target.config.get_text_config().hidden_size
    try:
        if len(ids) != drafted or not rising(ids, vocabulary):
            raise ValueError("d2t does not map its tokens to the target's")
        with torch.random.fork_rng(devices=[]):
            model = EagleHead(
                config_of(width, inner, drafted, head.trained["config"]), ids, target.get_input_embeddings()
            )
        model.load_state_dict(tensors)
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        cause = " ".join(str(error).split())[:80]
        raise UserError(f"the head for {KIND} is damaged ({cause}); train or import it anew") from None
    model.requires_grad_(False).eval().to(target.device)
    for parameter in model.parameters():  # the frequencies of the positions stay in float32
        parameter.data = parameter.data.to(target.dtype)
    return model


def rising(ids: torch.Tensor, vocabulary: int) -> bool:
    """Whether these are ids of a vocabulary in rising order, each once."""
    return bool((ids.diff() > 0).all()) and int(ids[0]) >= 0 and int(ids[-1]) < vocabulary


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Of the pair the target alone. Raises UserError for a head that does not fit it."""
    target = check_target(pair)
    head = find_head(settings.head, KIND, pair, SHAPES)
    model = eagle_head(head, target, pair.vocabulary)
    session = Session(model, "draft", watch, model.config.vocab_size, beside(pair.runtime, model))
    drafter = EagleDrafter(model, session, layers_read(target), settings.total_tokens, settings.top_k, settings.depth)
    return Eagle3(pair.session("target", watch), drafter, head.hashes())
