"""followers: a small network says what follows each token of the vocabulary, and nothing else drafts. Lossless."""

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from specbench.config import Settings as Base
from specbench.engine.accept import exact
from specbench.engine.drafters import Drafter
from specbench.engine.models.heads import find_head, refuse_damaged
from specbench.engine.models.pair import Pair
from specbench.engine.types import Draft, Method, Sampling, Watch
from specbench.methods.drafting import DraftedMethod

KIND = "followers"  # of the head's file
SHAPES = {"read.weight": (-1, -1), "say.weight": (-1, -1)}


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")
    head: str = Field(description="the trained network's file")


class Network(nn.Module):
    """Logits of what follows a token."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.read = nn.Embedding(vocabulary, width)
        self.say = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [..., V] after tokens [...]."""
        logits: Tensor = self.say(self.read(tokens))
        return logits


class TableDrafter(Drafter):
    """Drafts the likeliest follower of the last token, then that one's, and so on."""

    def __init__(self, followers: Sequence[int], device: torch.device) -> None:
        self.followers, self.device = followers, device

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        tokens = [context[-1]]
        for _ in range(gamma):
            tokens.append(self.followers[tokens[-1]])
        return Draft(torch.tensor(tokens[1:], device=self.device), None)  # None: a point mass on each token


class Followers(DraftedMethod):
    """Rounds of `specbench.engine.speculate.speculate`: propose, score, accept, keep."""

    accept, lossless = staticmethod(exact), True

    def __init__(self, settings: Settings, pair: Pair, watch: Watch, followers: Sequence[int]) -> None:
        self.target = pair.session("target", watch)
        self.drafter = TableDrafter(followers, pair.device)
        self.gamma, self.reach = settings.gamma, settings.gamma + 1


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """The method on a loaded pair, of which only the target is used. Raises UserError for a head of another pair."""
    head = find_head(settings.head, KIND, pair, SHAPES)
    method = Followers(settings, pair, watch, followers_of(head.tensors))
    method.hashes = head.hashes()  # so that a run with another head is another run
    return method


def followers_of(tensors: Mapping[str, Tensor]) -> list[int]:
    """The likeliest follower of each token."""
    with refuse_damaged(KIND), torch.no_grad():
        network = Network(*tensors["read.weight"].shape)
        network.load_state_dict(dict(tensors))
        followers: list[int] = network(torch.arange(network.read.num_embeddings)).argmax(-1).tolist()
        return followers
