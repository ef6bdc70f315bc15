"""Sessions that are tables of logits: thousands of texts from trees cost no model, and their law is a product."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import oracle
import torch
from gates import DEVICE
from law import fit, texts

from specbench.engine import trees
from specbench.engine.session import Session
from specbench.engine.types import Method, Sampling, Scored

V = 4  # tokens of the vocabulary


class Table:
    """A session whose next token hangs on the last one and on how many there are: no model, so thousands are cheap."""

    trees = True
    device = torch.device(DEVICE)

    def __init__(self, vocabulary: int, seed: int) -> None:
        logits = 1.5 * np.random.default_rng(seed).normal(size=(vocabulary, vocabulary))
        self.logits = torch.tensor(logits, device=DEVICE)

    def row(self, token: int, length: int) -> torch.Tensor:
        """Logits [V] behind a text of so many tokens that ends with this one."""
        return self.logits[token].roll(length)

    def scored(self, tokens, lengths) -> Scored:
        at = torch.arange(self.logits.shape[1], device=DEVICE) - torch.tensor(lengths, device=DEVICE)[:, None]
        return Scored(self.logits[torch.as_tensor(tokens, device=DEVICE)].gather(1, at % self.logits.shape[1]))

    def restart(self, prompt, *_) -> Scored:
        self.truncate(0)
        return self.forward(prompt)

    catch_up = restart

    def truncate(self, length) -> None:
        self.length, self.depths = length, []

    def forward(self, tokens, keep=0, parents=None, hidden=(), features=None) -> Scored:
        if parents is None:
            self.length += len(tokens)
            return self.scored(tokens, range(self.length - len(tokens) + 1, self.length + 1))
        for parent in map(int, parents):
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 1)
        return self.scored(tokens, [self.length + depth for depth in self.depths[-len(tokens) :]])

    def keep(self, start, path) -> None:
        self.length, self.depths = start + len(path), []


def warped(row: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    return oracle.warp(row.cpu(), sampling.temperature, sampling.top_k, sampling.top_p)


def law(session: Table, prompt: list[int], count: int, sampling: Sampling) -> np.ndarray:
    """Probabilities [V, …, V] of texts of `count` tokens."""
    v = session.logits.shape[1]
    result = np.ones((v,) * count)
    for text in itertools.product(range(v), repeat=count):
        for i, token in enumerate(text):
            row = session.row(text[i - 1] if i else prompt[-1], len(prompt) + i)
            result[text] *= float(warped(row, sampling)[token])
    return result


def p_of_texts(make: Callable[[Table, Table], Method], sampling: Sampling, draws: int) -> float:
    """p-value of texts of four tokens, of which the last three come from rounds, against the target's law."""
    target, draft = Table(V, 1), Table(V, 2)
    counts = texts(make(target, draft), V, [1, 2], 4, sampling, draws).counts
    return oracle.chi_square(counts, law(target, [1, 2], 4, sampling))


def p_with_caches(make: Callable[[Session, Session], Method]) -> float:
    """The same by models, whose trees need masks and positions: 150 texts of three tokens find gross errors."""
    target, draft = (oracle.tiny("llama", seed=seed, vocab=V).to(DEVICE) for seed in (1, 2))
    method = make(Session(target, "target"), Session(draft, "draft"))
    return fit(method, target, [1, 2], 3, Sampling(0.8), 150).p


def draw_for_each_branch(monkeypatch) -> None:
    """A wrong rule, REST's official one: every branch has a draw of its own, and the first that agrees is taken."""
    test = trees.tree_test

    def each(draft, logits, sampling, rng):
        tested = test(draft, logits, sampling, rng)
        if draft.rows is None:
            return tested
        own = trees.draw(logits[draft.rows], sampling, rng)[0]
        return replace(tested, passed=draft.tokens == own)

    monkeypatch.setattr(trees, "tree_test", each)
