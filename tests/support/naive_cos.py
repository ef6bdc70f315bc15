"""Slow second implementation of collaborative decoding (CoS, arXiv 2502.01662), written from its description alone.

Nothing here imports the package under test. A model is a function from a whole sequence to the logits of its next
token; nothing is cached but whole answers. Members are numbered in their order; C_i are the distributions that
Algorithm 2 stores of model i, S_c the proposed tokens that are not judged yet.
"""

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import oracle
import torch
from torch import Tensor
from transformers import PreTrainedModel

NextLogits = Callable[[Sequence[int]], Tensor]  # a sequence -> float64 logits [V] of the token behind it


class Sampler(NamedTuple):
    """How a token is drawn; temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


# Logits [V] of every member, in order -> r [V], one-hot at temperature 0.
Combine = Callable[[Sequence[Tensor], Sampler], Tensor]
GREEDY = Sampler()


def weighted(*weights: float) -> Combine:
    """r = Σ w_i p_i, each p_i cut and tempered by itself; greedy: the best token of the mixture at temperature 1."""

    def combine(logits: Sequence[Tensor], sampler: Sampler) -> Tensor:
        each = Sampler(1.0) if sampler.temperature == 0 else sampler
        rows = [weight * oracle.warp(row, *each) for weight, row in zip(weights, logits, strict=True)]
        mixture = torch.stack(rows).sum(0)
        return one_hot(oracle.best(mixture), len(mixture)) if sampler.temperature == 0 else mixture

    return combine


def contrastive(mu: float) -> Combine:
    """Raw logits of the expert (last) less μ times the amateur's (first); temperature, top-k and top-p then."""

    def combine(logits: Sequence[Tensor], sampler: Sampler) -> Tensor:
        amateur, expert = logits
        return oracle.warp(expert - mu * amateur, *sampler)

    return combine


def realigned(strength: float) -> Combine:
    """Raw logits, λ times the aligned model's (last) and 1 - λ times the reference's (first)."""

    def combine(logits: Sequence[Tensor], sampler: Sampler) -> Tensor:
        reference, aligned = logits
        return oracle.warp(strength * aligned + (1 - strength) * reference, *sampler)

    return combine


def one_hot(token: int, size: int) -> Tensor:
    row = torch.zeros(size, dtype=torch.float64)
    row[token] = 1.0
    return row


# Models -------------------------------------------------------------------------------------------------------------


def family(architecture: str, count: int, seed: int = 0, vocab: int = 96, scale: float = 1.0) -> list[PreTrainedModel]:
    """Copies of one tiny model, each with noise of its own (`scale` times oracle.NOISE_SCALE): relatives."""
    parent = oracle.tiny(architecture, seed, vocab)
    members = []
    for number in range(count):
        generator = torch.Generator().manual_seed(1000 * (seed + 1) + number)
        child = copy.deepcopy(parent)
        with torch.no_grad():
            for _, parameter in sorted(child.named_parameters()):
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(scale * oracle.NOISE_SCALE[architecture] * parameter.std() * noise)
        members.append(child)
    return members


def reader(model: torch.nn.Module) -> NextLogits:
    """A model as a function; each answer is computed from the whole sequence, and remembered."""
    known: dict[tuple[int, ...], Tensor] = {}

    def read(tokens: Sequence[int]) -> Tensor:
        sequence = tuple(tokens)
        if sequence not in known:
            known[sequence] = oracle.next_logits(model, list(sequence))
        return known[sequence]

    return read


class Table(torch.nn.Module):
    """A model that looks at the last token only: row t of `logits` [V, V] is what it says behind token t.

    It has what a decoder asks of a transformers model, keeps nothing in the cache, and takes microseconds.
    """

    table: Tensor

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", logits.double())
        text = SimpleNamespace(vocab_size=len(logits), max_position_embeddings=10**6)
        self.config = SimpleNamespace(get_text_config=lambda decoder=False: text, **vars(text))
        self.dtype = torch.float64

    @property
    def device(self) -> torch.device:
        return self.table.device

    def num_parameters(self) -> int:
        return self.table.numel()

    def forward(self, ids: Tensor, logits_to_keep: int = 0, **_: object) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table[ids[:, -logits_to_keep:]], hidden_states=None)


def rows_of(probabilities: Sequence[Sequence[float]]) -> Table:
    """A Table with these next-token probabilities [V][V] at temperature 1."""
    return Table(torch.tensor(probabilities, dtype=torch.float64).log().clamp(min=-1e9))


def successor(size: int, follows: dict[int, int], otherwise: int = 1) -> Table:
    """A Table that is all but sure: behind t comes follows[t], or t + `otherwise` where nothing is said of t."""
    logits = torch.zeros(size, size, dtype=torch.float64)
    for token in range(size):
        logits[token, follows.get(token, (token + otherwise) % size)] = 9.0
    return Table(logits)


# Standard collaborative decoding --------------------------------------------------------------------------------------


def combined(models: Sequence[NextLogits], combine: Combine, tokens: Sequence[int], sampler: Sampler) -> Tensor:
    """r [V] behind `tokens`."""
    return combine([model(tokens) for model in models], sampler)


def ensemble_greedy(models: Sequence[NextLogits], combine: Combine, prompt: Sequence[int], count: int) -> list[int]:
    """The `count` tokens behind `prompt` that the combined models choose one at a time."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(oracle.best(combined(models, combine, tokens, GREEDY)))
    return tokens[len(prompt) :]


def joint(
    models: Sequence[NextLogits], combine: Combine, prompt: Sequence[int], sampler: Sampler, length: int = 2
) -> np.ndarray:
    """Exact probabilities [V, …, V] of the first `length` tokens behind `prompt` under r; they sum to 1."""
    first = combined(models, combine, prompt, sampler).numpy()
    if length == 1:
        return first
    rest = [joint(models, combine, [*prompt, token], sampler, length - 1) for token in range(len(first))]
    return np.stack([chance * later for chance, later in zip(first, rest, strict=True)])


def overlap(
    models: Sequence[NextLogits], combine: Combine, tokens: Sequence[int], proposer: int, sampler: Sampler
) -> float:
    """α behind `tokens` = 1 - ½ Σ |q - r|, q being what the proposer draws from."""
    q = oracle.warp(models[proposer](tokens), *sampler)
    return 1 - 0.5 * float((q - combined(models, combine, tokens, sampler)).abs().sum())


# CoS ------------------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One invocation of Algorithm 2: a model scores what it has not seen, a verification, and further proposals."""

    model: int
    fed: tuple[int, ...]  # tokens of each of its forwards
    proposed: list[int]  # the bonus token first, if it scored
    judged: list[tuple[int, int]]  # tokens that all had scored, up to the first rejected one: (token, its proposer)
    accepted: int  # how many of them stand
    correction: int | None  # what follows instead of the rejected one
    stored: tuple[int, ...]  # |C_i| of every model once this one has scored (or proposed, as the default proposer)
    left: tuple[int, ...]  # |C_i| at the end of the invocation
    cleared: list[tuple[int, int]]  # what of S_c was dropped behind the rejected token

    @property
    def committed(self) -> list[int]:
        kept = [token for token, _ in self.judged[: self.accepted]]
        return kept if self.correction is None else [*kept, self.correction]


class Algorithm2:
    """Its variables and its three procedures, for greedy decoding."""

    def __init__(self, models: Sequence[NextLogits], combine: Combine, prompt: Sequence[int]) -> None:
        self.models, self.combine = models, combine
        self.text = list(prompt)  # S
        self.pending: list[tuple[int, int]] = []  # S_c: tokens, and who proposed them
        self.stored = [0 for _ in models]  # |C_i|
        self.held = [self.text[:-1] for _ in models]  # what each model has been fed

    def propose(self, i: int) -> tuple[int, int]:
        """Model i reads what it lacks of S + S_c and adds a token: how many it was fed, and the token."""
        sequence = self.text + [token for token, _ in self.pending]
        known, self.held[i] = self.held[i], sequence
        assert known == sequence[: len(known)]
        token = oracle.best(self.models[i](sequence))
        self.pending.append((token, i))
        self.stored[i] = len(self.pending)
        return len(sequence) - len(known), token

    def verify(self) -> tuple[list[tuple[int, int]], int, int | None, list[tuple[int, int]]]:
        """Judge what all have scored: (what was judged, how much of it stands, the correction, what was cleared)."""
        judged: list[tuple[int, int]] = []
        while min(self.stored) > 0:
            judged.append(self.pending.pop(0))
            wanted = oracle.best(combined(self.models, self.combine, self.text, GREEDY))
            self.text.append(wanted)
            self.stored = [size - 1 for size in self.stored]
            if judged[-1][0] != wanted:
                cleared, self.pending = self.pending, []
                self.stored = [0 for _ in self.models]
                self.held = [sequence[: len(self.text) - 1] for sequence in self.held]
                return judged, len(judged) - 1, wanted, cleared
        return judged, len(judged), None, []


def cos_greedy(
    models: Sequence[NextLogits],
    combine: Combine,
    gammas: Sequence[int],
    order: Sequence[int],
    prompt: Sequence[int],
    count: int,
) -> list[Call]:
    """Algorithm 2 until at least `count` tokens follow `prompt` (they are not cut).

    `gammas` are in the members' order; `order` lists the members with the default proposer M_1 first, and the first of
    it wins where several have stored equally few distributions. As in the released code, nothing further is proposed
    after a rejection, where the printed algorithm would let M_i propose once more.
    """
    state, calls = Algorithm2(models, combine, prompt), []
    while len(state.text) - len(prompt) < count:
        fresh = not state.pending
        i = order[0] if fresh else min(order, key=lambda j: state.stored[j])  # min: the first of equals
        steps = [state.propose(i) for _ in range(gammas[i] if fresh else 1)]
        stored = tuple(state.stored)
        judged, accepted, correction, cleared = state.verify()
        if not fresh and correction is None:
            steps += [state.propose(i) for _ in range(gammas[i] - 1)]
        fed, proposed = tuple(width for width, _ in steps), [token for _, token in steps]
        calls.append(Call(i, fed, proposed, judged, accepted, correction, stored, tuple(state.stored), cleared))
    return calls


# The two schemes without alternating proposers ------------------------------------------------------------------------


class Block(NamedTuple):
    """One round in which a fixed proposer drafts γ tokens and all others judge them."""

    drafted: list[int]
    accepted: int
    token: int | None  # correction; behind a draft that stands whole the bonus, or None where there is none
    forwards: tuple[int, ...]  # of each member

    @property
    def committed(self) -> list[int]:
        return self.drafted[: self.accepted] + ([] if self.token is None else [self.token])


def block_greedy(
    models: Sequence[NextLogits],
    combine: Combine,
    gamma: int,
    proposer: int,
    prompt: Sequence[int],
    count: int,
    bonus: bool,
) -> list[Block]:
    """Rounds until at least `count` tokens follow `prompt`. With `bonus` speculative decoding whose target is r.

    Without it naive CoS, in which the proposer's distributions of drafting serve again: γ forwards of it and one of
    every other member. With it the proposer reads the draft once more, as a part of the target.
    """
    tokens, rounds = list(prompt), []
    while len(tokens) - len(prompt) < count:
        drafted: list[int] = []
        for _ in range(gamma):
            drafted.append(oracle.best(models[proposer]([*tokens, *drafted])))
        wanted = ensemble_greedy(models, combine, tokens, gamma + 1)
        accepted = next((k for k in range(gamma) if drafted[k] != wanted[k]), gamma)
        token = wanted[accepted] if accepted < gamma or bonus else None
        forwards = tuple(gamma + bonus if i == proposer else 1 for i in range(len(models)))
        rounds.append(Block(drafted, accepted, token, forwards))
        tokens += rounds[-1].committed
    return rounds
