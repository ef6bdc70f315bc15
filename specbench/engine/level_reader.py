"""Reads a tree level by level while it grows: its nodes follow the session's context, and the host waits for none."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.session import LAST, Session

# Reads k more nodes of a tree: draft tokens [k], and for each the index of its parent among the k nodes read last
# (None for the first k, which follow the context) -> logits [k, draft vocabulary] after each.
Read = Callable[[Tensor, Tensor | None], Tensor]


class Grown(NamedTuple):
    """A tree: parents come before children, and siblings in the order of their probability."""

    tokens: Tensor  # [K], in the draft vocabulary
    parents: Tensor  # [K]: the index of the parent; -1: the context
    values: Tensor  # [K]: the log-probability of each node's path


class LevelReader:
    """A `Read` by a session.

    Of a head, `states` [1, D] are its own after the context: each node is read with the state after its parent. `ids`
    [draft vocabulary] maps a head's tokens to the target's.
    """

    def __init__(self, session: Session, states: Tensor | None = None, ids: Tensor | None = None) -> None:
        self.session, self.states, self.ids = session, states, ids
        self.first = self.fed = 0  # the first of the nodes that were read last, and how many were read

    def __call__(self, tokens: Tensor, followed: Tensor | None) -> Tensor:
        if followed is None:
            parents = torch.full_like(tokens, -1)
            states = None if self.states is None else self.states.expand(len(tokens), -1)
        else:
            parents = self.first + followed
            states = None if self.states is None else self.states[followed]
        self.first, self.fed = self.fed, self.fed + len(tokens)
        fed = tokens if self.ids is None else self.ids[tokens]
        hidden = () if states is None else LAST
        scored = self.session.forward(fed, parents=parents, hidden=hidden, features=states)
        self.states = scored.hidden
        return scored.logits
