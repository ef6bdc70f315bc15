"""Draft heads: head i says the token x_{t+2+i} from the target's state after x_t (arXiv 2401.10774, 2402.05109).

A head is a few residual blocks and an output layer. Medusa's heads read the state alone; Hydra's heads read the tokens
between, too. The names of weights and their layout are those of the released checkpoints (FasterDecoding/Medusa,
zankner/Hydra). Heads without output layers of their own use the target's.
"""

from abc import abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b), from rows [..., n D] to [..., D]. For n > 1 the first summand is a projection of x, too."""

    def __init__(self, width: int, parts: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(parts * width, width)
        self.res_connection = nn.Linear(parts * width, width) if parts > 1 else nn.Identity()

    def forward(self, read: Tensor) -> Tensor:
        state: Tensor = self.res_connection(read) + nn.functional.silu(self.linear(read))
        return state


class DraftHeads(nn.Module):
    """M heads on the states [D] of a target."""

    @abstractmethod
    def __len__(self) -> int:
        """M."""

    @abstractmethod
    def predict(self, head: int, states: Tensor, path: Tensor) -> Tensor:
        """Logits [n, V] of x_{t+2+i} by head i, of states [n, D] after x_t and paths x_{t+1} … x_{t+1+i} [n, i + 1]."""

    @abstractmethod
    def outputs(self) -> Iterable[nn.Linear]:
        """The heads' own output layers; none if they use the target's."""

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


class MedusaHeads(DraftHeads, nn.ModuleList):
    """Heads that read the state alone: all are computed at once, whatever the other ones draft.

    `own` says if they have output layers of their own, without biases; else the target's `output` is used, which is not
    one of the weights. `layers` are the residual blocks of a head.
    """

    def __init__(self, heads: int, layers: int, width: int, own: bool, output: nn.Module) -> None:
        nn.ModuleList.__init__(
            self,
            (
                nn.Sequential(
                    *(ResidualBlock(width) for _ in range(layers)),
                    *(nn.Linear(width, vocabulary_of(output), bias=False) for _ in range(own)),
                )
                for _ in range(heads)
            ),
        )
        self.own, self.borrowed = own, (output,)  # in a tuple, so that it is not a submodule

    def __len__(self) -> int:
        return nn.ModuleList.__len__(self)

    def predict(self, head: int, states: Tensor, path: Tensor) -> Tensor:
        return self.of_state(head, states)

    def of_state(self, head: int, states: Tensor) -> Tensor:
        """`predict` without the path, which is not read."""
        read: Tensor = self[head](states.to(self.dtype))
        return read if self.own else by(self.borrowed[0], read)

    def outputs(self) -> list[nn.Linear]:
        return [head[-1] for head in self] if self.own else []  # type: ignore[index,misc]


class HydraHeads(DraftHeads):
    """Heads that read the state and the embeddings of the path, side by side: what they say depends on the path.

    `own`, `layers` and `output` are as of Medusa's heads, but own output layers have biases. `embedding` is the
    target's and not one of the weights either.
    """

    def __init__(self, heads: int, layers: int, width: int, own: bool, output: nn.Module, embedding: nn.Module) -> None:
        super().__init__()
        self.hydra_mlp = nn.ModuleList(
            nn.Sequential(ResidualBlock(width, head + 2), *(ResidualBlock(width) for _ in range(layers - 1)))
            for head in range(heads)
        )
        self.hydra_lm_head = nn.ModuleList(nn.Linear(width, vocabulary_of(output)) for _ in range(own * heads))
        self.borrowed = (output, embedding)

    def __len__(self) -> int:
        return len(self.hydra_mlp)

    def predict(self, head: int, states: Tensor, path: Tensor) -> Tensor:
        embedded = self.borrowed[1](path).flatten(-2)
        read: Tensor = self.hydra_mlp[head](torch.cat([states.to(self.dtype), embedded.to(self.dtype)], -1))
        return self.hydra_lm_head[head](read) if len(self.hydra_lm_head) else by(self.borrowed[0], read)

    def outputs(self) -> list[nn.Linear]:
        return list(self.hydra_lm_head)  # type: ignore[arg-type]


def vocabulary_of(output: nn.Module) -> int:
    """How many tokens an output layer knows."""
    weight: Tensor = output.weight  # type: ignore[assignment]
    return weight.shape[0]


def by(output: nn.Module, states: Tensor) -> Tensor:
    """Logits [n, V] of states [n, D] by the target's output layer, in the type of its weights."""
    logits: Tensor = output(states.to(next(output.parameters()).dtype))
    return logits


def counted(names: Iterable[str], prefix: str) -> int:
    """How many modules 0, 1, … the names of tensors have after a prefix. Raises ValueError if one is left out."""
    numbers = {name.removeprefix(prefix).split(".")[0] for name in names if name.startswith(prefix)}
    if not numbers or numbers != {str(number) for number in range(len(numbers))}:
        raise ValueError(f"its tensors {prefix}… are not numbered from 0 on")
    return len(numbers)
