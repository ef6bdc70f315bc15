"""The tree of drafted tokens that a session has fed: which tokens each one reads, and where it stands."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specbench.engine.ids import sent, to_device
from specbench.engine.runtimes.types import Reads


class Tree:
    """The shape of a tree after `root` cached tokens; true once it has tokens."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.depths: list[int] = []  # of each token, 0 for the children of the context
        self.paths: list[set[int]] = []  # the tokens that each one reads: its ancestors and itself
        self.parents: list[int] = []

    def __len__(self) -> int:
        return len(self.depths)

    def grow(self, parents: Sequence[int]) -> None:
        """Add tokens with these parents, in place. Raises ValueError for a parent that does not come earlier."""
        for parent in parents:
            if not -1 <= parent < len(self):
                raise ValueError(f"token {len(self)} of a tree cannot follow token {parent}")
            above = self.paths[parent] if parent >= 0 else set()
            self.parents.append(parent)
            self.paths.append({*above, len(self)})
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)

    def reads(self, width: int, device: torch.device) -> Reads:
        """What the last `width` tokens read; the depth of a token decides its position."""
        reads = np.zeros((width, len(self)), bool)  # only the tree is laid out on the host, since contexts are long
        for row, path in enumerate(self.paths[-width:]):
            reads[row, list(path)] = True
        allowed = torch.ones(width, self.root + len(self), dtype=torch.bool, device=device)
        allowed[:, self.root :] = sent(torch.from_numpy(reads), device)
        places = self.root + to_device(self.depths, device)  # of the tree's tokens
        return Reads(allowed, torch.cat([torch.arange(self.root, device=device), places]), self.root)


class DeviceTree:
    """The same of a tree whose shape is on the device; the host does not know it."""

    def __init__(self, root: int, device: torch.device) -> None:
        self.root = root
        self.allowed = torch.ones(0, 0, dtype=torch.bool, device=device)  # [n, n]: the tokens that each one reads
        self.above = torch.empty(0, dtype=torch.long, device=device)  # [n]: the parents

    def __len__(self) -> int:
        return self.above.shape[0]

    def grow(self, parents: Tensor) -> None:
        """Add tokens with these parents [n], which are not checked, in place."""
        self.allowed = closure(self.allowed, parents)
        self.above = torch.cat([self.above, parents])

    @property
    def parents(self) -> list[int]:
        """Waits for the device."""
        above: list[int] = self.above.tolist()
        return above

    def reads(self, width: int, device: torch.device) -> Reads:
        allowed = torch.cat([self.allowed.new_ones(width, self.root), self.allowed[-width:]], 1)
        places = self.root - 1 + self.allowed.sum(1)
        return Reads(allowed, torch.cat([torch.arange(self.root, device=device), places]), self.root)


def closure(known: Tensor, parents: Tensor) -> Tensor:
    """Which tokens each one of a tree reads [n + m, n + m], from those of its first n [n, n] and m more parents [m]."""
    before, more = known.shape[0], parents.shape[0]
    follows = parents[:, None] == torch.arange(before + more, device=parents.device)
    reached = (follows[:, before:] | torch.eye(more, dtype=torch.bool, device=parents.device)).float()
    for _ in range((more - 1).bit_length()):  # each square doubles how far a path is followed
        reached = (reached @ reached).clamp_(max=1)
    earlier = reached @ (follows[:, :before].float() @ known.float())
    new = torch.cat([earlier, reached], 1) > 0
    return torch.cat([torch.nn.functional.pad(known, (0, more)), new])
