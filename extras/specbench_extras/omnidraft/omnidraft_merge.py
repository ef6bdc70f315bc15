"""Which of a draft's tokens spell which of the target's, and how a draft that is merged by this is tested.

A draft model with another tokenizer draws its own tokens one after the other. A run of them that spells a token of the
target becomes that token, the longest one that the tree holds. So a token of the target is proposed by moves through
the tree: its first move chooses the draft's token from all that begin one of the target's; each further move goes on to
a child, or ends the token. What is drawn next tells which: a token that is no child ends the one before it, and is the
first move of the next one. Then it is known not to be a child, so its law is without the children, renormalised.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.accept import Tested
from specbench.engine.sampling import pick
from specbench.engine.session import common
from specbench.engine.translate import Translation
from specbench.engine.types import Draft


@dataclass
class Node:
    """A run of the draft's tokens, and what may follow it within a token of the target."""

    token: int | None = None  # the target's token that ends here
    children: dict[int, "Node"] = field(default_factory=dict)  # by the draft's next token
    tokens: list[int] = field(default_factory=list)  # the target's tokens that end here or further on

    def options(self) -> list[int]:
        """The option that each of `tokens` is: the index of the child that leads to it; of the one that ends here, the
        number of children."""
        places = {token: i for i, child in enumerate(self.children.values()) for token in child.tokens}
        return [places.get(token, len(self.children)) for token in self.tokens]


class Spellings:
    """The tree of all tokens that both have, and of those of the target that were added (the n-gram cache)."""

    def __init__(self, translation: Translation, device: torch.device) -> None:
        """`device` is where drafts are drawn and tested."""
        self.translation = translation
        self.device = device
        self.size = translation.size_draft
        self.forget()

    def forget(self) -> None:
        """Keep only the tokens that both have, in place."""
        self.root = Node()
        self.added: list[int] = []  # in the order in which they came
        self.first = [self.size] * self.translation.size  # the first of the draft's tokens for each of the target's
        for token, own in self.translation.shared.items():
            self._add(token, (own,))
        self._tables: tuple[Tensor, Tensor] | None = None

    def add(self, token: int) -> None:
        """Take in a token of the target, in place, if the draft spells it in several that spell no other one."""
        path = self.translation.spell(token)
        if len(path) > 1 and self.first[token] == self.size and self._add(token, path):
            self.added.append(token)
            self._tables = None

    def _add(self, token: int, path: tuple[int, ...]) -> bool:
        """Add a path, in place; False if another token has it."""
        nodes = [self.root]
        for own in path:
            nodes.append(nodes[-1].children.setdefault(own, Node()))
        if nodes[-1].token is not None:
            return False
        nodes[-1].token = token
        self.first[token] = path[0]
        for node in nodes[1:]:
            node.tokens.append(token)
        return True

    def tables(self) -> tuple[Tensor, Tensor]:
        """The first of the draft's tokens for each of the target's [V], the draft's V for none; and what is added to
        the draft's logits [its V]: -inf for tokens that begin none."""
        if self._tables is None:
            closed = torch.full((self.size,), -torch.inf)
            closed[list(self.root.children)] = 0.0
            self._tables = torch.tensor(self.first, device=self.device), closed.to(self.device)
        return self._tables

    def allowed(self, logits: Tensor, node: Node) -> Tensor:
        """The draft's logits [1, its V] after a run, -inf for tokens that neither go on with it nor may follow it."""
        if node is self.root:
            return logits + self.tables()[1].to(logits.dtype)
        added = torch.full_like(logits[0], -torch.inf) if node.token is None else self.tables()[1].to(logits, copy=True)
        added[list(node.children)] = 0.0
        return logits + added


class Move(NamedTuple):
    """A move through the tree, and the law that it was drawn from."""

    node: Node | None  # where it begins; None: at the root
    chosen: int  # of the first move the draft's token; else the index of the child, or their number: the token ends
    law: Tensor | None  # [options]; None: greedy

    @property
    def ends(self) -> bool:
        """True if the token goes no further."""
        return self.node is not None and self.chosen == len(self.node.children)


@dataclass(frozen=True)
class Merged(Draft):
    """A draft whose tokens were merged from a model's own; each has its moves."""

    moves: tuple[tuple[Move, ...], ...] = ()


class Merging:
    """Merges a draft's own tokens into the target's while they are drawn."""

    def __init__(self, spellings: Spellings) -> None:
        self.spellings = spellings
        self.node = spellings.root
        self.tokens: list[int] = []  # the target's, that are finished
        self.moves: list[tuple[Move, ...]] = []
        self.open: list[Move] = []  # of the token that is not finished

    def take(self, own: int, probs: Tensor | None) -> None:
        """Take in the draft's next token, in place; it was drawn from `probs` [1, its V], or is the greedy one (None).

        The logits were those that `allowed` lets through at this node.
        """
        root, node = self.spellings.root, self.node
        law = None if probs is None else probs[0]
        if node is not root:
            children = list(node.children)
            goes_on = own in node.children
            self.open.append(Move(node, children.index(own) if goes_on else len(children), options_law(law, children)))
            if not goes_on:
                self.close()
                law = None if law is None else without(law, children)
        if self.node is root:
            self.open.append(Move(None, own, law))
        self.node = self.node.children[own]
        if not self.node.children:
            self.close()

    def end(self) -> None:
        """End the draft here, in place; `ends` must be true. That the token goes no further is certain now."""
        if self.node is not self.spellings.root:
            count = len(self.node.children)
            law = self.open[0].law
            certain = None if law is None else torch.eye(count + 1, dtype=law.dtype, device=law.device)[count]
            self.open.append(Move(self.node, count, certain))
            self.close()

    @property
    def ends(self) -> bool:
        """True if a token of the target ends here."""
        return self.node is self.spellings.root or self.node.token is not None

    def close(self) -> None:
        assert self.node.token is not None
        self.tokens.append(self.node.token)
        self.moves.append(tuple(self.open))
        self.open, self.node = [], self.spellings.root


def options_law(law: Tensor | None, children: list[int]) -> Tensor | None:
    """The law [children + 1] of going on to each child, or of ending, by the law [its V] of the draft's next token."""
    if law is None:
        return None
    on = law[children]
    return torch.cat([on, (1 - on.sum(0, keepdim=True)).clamp(min=0)])


def without(law: Tensor, children: list[int]) -> Tensor:
    """The law [its V] of the draft's next token once it is known to be none of the children."""
    rest = law.clone()
    rest[children] = 0
    return rest / rest.sum()


def weighed(p: Tensor, options: Tensor, law: Tensor, chosen: int) -> tuple[Tensor, Tensor]:
    """Speculative sampling of an option: the chance that it passes, and what is emitted otherwise.

    p [n] are the target's probabilities of n tokens, unnormalised, and `options` [n] the option that each one belongs
    to. `chosen` was drawn from `law` [m]. What is emitted is drawn from the second result [n], which is not normalised:
    an option from norm((its share of p - law)₊), a token of it by p.
    """
    share = torch.zeros_like(law).index_add_(0, options, p.to(law.dtype)) / p.sum()
    left = torch.where(share > 0, 1 - law / share, 0.0).clamp(min=0)
    rest = p * left[options].to(p.dtype)
    return (share[chosen] / law[chosen]).clamp(max=1), rest if rest.sum() > 0 else p


def weighed_moves(spellings: Spellings, moves: tuple[Move, ...], p: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For each move of a drafted token the chance that it passes, and what is emitted otherwise: weights [V].

    p [V] is the target's distribution. A token passes if all its moves do.
    """
    for move in moves:
        assert move.law is not None
        if move.node is None:
            unreached = torch.cat([move.law, move.law.new_zeros(1)])
            yield weighed(p, spellings.tables()[0], unreached, move.chosen)
        else:
            options = torch.tensor(move.node.options(), device=p.device)
            chance, rest = weighed(p[move.node.tokens], options, move.law, move.chosen)
            yield chance, torch.zeros_like(p).index_add_(0, torch.tensor(move.node.tokens, device=p.device), rest)


def exact_merged(
    spellings: Spellings, draft: Merged, p: Tensor, rng: torch.Generator
) -> tuple[Tested, list[float], list[float]]:
    """Test a draft of K tokens, T > 0, by the target's distributions p [K + 1, V]: move by move, until one fails.

    Besides the test: the chance of each of the draft's own tokens that was tested, and q′ of each merged one [K], the
    product of the laws of its moves.
    """
    chances: list[float] = []
    emit = draft.tokens.tolist()
    accepted = 0
    for place, moves in enumerate(draft.moves):
        for move, (chance, rest) in zip(moves, weighed_moves(spellings, moves, p[place]), strict=True):
            if move.ends:
                chances[-1] *= float(chance)
            else:
                chances.append(float(chance))
            if float(torch.rand((), generator=rng, device=p.device, dtype=p.dtype)) >= float(chance):
                emit[place] = int(pick(rest[None], rng))
                break
        else:
            accepted += 1
            continue
        break
    emit.append(int(pick(p[-1:], rng)))
    passed = torch.arange(len(draft.moves), device=p.device) < accepted
    merged = [float(torch.stack([m.law[m.chosen] for m in moves if m.law is not None]).prod()) for moves in draft.moves]
    return Tested(passed, torch.tensor(emit, device=p.device)), chances, merged


def greedy_chances(spellings: Spellings, drafted: list[int], accepted: int, token: int) -> list[float]:
    """1 for each of the draft's own tokens that the target agrees with, then 0 for the first that it does not.

    `token` is the target's in the place of the first one that was not accepted.
    """
    spell = spellings.translation.spell
    agreed = [1.0 for entry in drafted[:accepted] for _ in spell(entry)]
    if accepted < len(drafted):
        own, wanted = spell(drafted[accepted]), spell(token)
        same = common(list(own), list(wanted)) if spellings.first[token] < spellings.size else 0
        agreed += [*[1.0] * min(same, len(own) - 1), 0.0]
    return agreed
