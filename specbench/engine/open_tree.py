"""The tree of drafted tokens that a session has fed: which tokens each one reads, and where it stands."""

from collections.abc import Sequence

import numpy as np
import torch

from specbench.engine.ids import to_device
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
        laid_out = torch.from_numpy(reads)
        allowed[:, self.root :] = (
            laid_out if device.type == "cpu" else laid_out.pin_memory().to(device, non_blocking=True)
        )
        places = self.root + to_device(self.depths, device)  # of the tree's tokens
        return Reads(allowed, torch.cat([torch.arange(self.root, device=device), places]), self.root)


NO_TREE = Tree(0)
