"""Slow second implementation of the decoding rules, written from the method descriptions alone.

Nothing here imports the package under test. Every step recomputes the whole context without a key/value cache.
The normalisation layers and attention softmax of the models compute in float32 even in a float64 model, so logits
from two differently shaped forwards may differ by a few 1e-6; compare them with a tolerance of 1e-4.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

ARCHITECTURES = ("llama", "qwen2", "qwen3", "opt", "gemma", "gemma2")

# Standard deviation of every weight matrix: large enough that greedy continuations do not fall into a short loop.
# The output matrix has its own, the same for all, so that logits spread by about 2 and sampling stays varied.
INITIALIZER_RANGE = {"llama": 0.5, "qwen2": 0.5, "qwen3": 1.0, "opt": 0.6, "gemma": 0.5, "gemma2": 0.5, "mistral": 0.5}
OUTPUT_RANGE = 0.4

# Draft = target + noise of this many standard deviations of each tensor, tuned for greedy acceptance in 0.3..0.8.
NOISE_SCALE = {"llama": 0.015, "qwen2": 0.015, "qwen3": 0.03, "opt": 0.015, "gemma": 0.015, "gemma2": 0.06}

Counts = dict[tuple[int, int], int]


class Round(NamedTuple):
    """One draft-and-verify round: tokens committed are `drafted[:accepted] + [token]`.

    `token` is the correction, or the bonus token when all drafts are accepted; `rescued` holds the 0-based positions
    of accepted drafts that differ from the target's own choice. Nothing is cut at a length limit.
    """

    drafted: list[int]
    accepted: int
    token: int
    rescued: list[int]


def tiny(architecture: str, seed: int = 0, vocab: int = 96, **sizes: int) -> PreTrainedModel:
    """Random two-layer causal model in float64, eval mode, eager attention, without special tokens.

    `sizes` overrides configuration fields. Does not disturb the global random state. ValueError: unknown architecture.
    """
    if architecture not in INITIALIZER_RANGE:
        raise ValueError(f"unknown architecture {architecture!r}")
    fields: dict[str, object] = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "eager",
    }
    if architecture == "opt":
        fields |= {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}
    else:
        fields |= {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}
    if architecture == "gemma2":
        fields |= {"sliding_window": 16, "query_pre_attn_scalar": 8}
    config = AutoConfig.for_model(architecture, **(fields | sizes))
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(torch.float64).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim >= 2:
                scale = OUTPUT_RANGE if name == "lm_head.weight" else INITIALIZER_RANGE[architecture]
                parameter.copy_(scale * noise)
            else:  # biases and norm gains: keep the constructor's value, but make it matter
                parameter.add_(0.1 * noise)
    return model.requires_grad_(False)


def tiny_pair(architecture: str, seed: int = 0, vocab: int = 96) -> tuple[PreTrainedModel, PreTrainedModel]:
    """(target, draft): the draft is a copy of the target with seeded noise of NOISE_SCALE on every parameter."""
    target = tiny(architecture, seed, vocab)
    draft = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(seed + 1000)
    with torch.no_grad():
        for _, parameter in sorted(draft.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(NOISE_SCALE[architecture] * parameter.std() * noise)
    return target, draft


def prompts(count: int, length: int = 8, vocab: int = 96, seed: int = 0) -> list[list[int]]:
    """`count` random prompts of `length` token ids below `vocab`, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (count, length), generator=generator).tolist()


@torch.no_grad()
def next_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """Float64 logits [V], on the CPU, of the token after `tokens`, from one full forward without a cache."""
    return model(torch.tensor([tokens], device=model.device), use_cache=False).logits[0, -1].double().cpu()


def best(logits: torch.Tensor | list[float]) -> int:
    """Index of the largest value of [V]; the lowest index wins a tie."""
    values = [float(value) for value in logits]
    return values.index(max(values))


def warp(logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    """Float64 probabilities [V] after temperature, then top-k, then nucleus; `top_k=0` and `top_p=1` keep all.

    Temperature 0 is one-hot at the lowest-index maximum. Tokens tied with the k-th largest all stay, as in
    transformers. The nucleus is the smallest set of most probable tokens whose mass reaches `top_p`, at least one.
    """
    probabilities = torch.zeros(len(logits), dtype=torch.float64)
    if temperature == 0:
        probabilities[best(logits)] = 1.0
        return probabilities
    values = [float(value) / temperature for value in logits]
    kept = set(range(len(values)))
    if 0 < top_k < len(values):
        smallest = sorted(values, reverse=True)[top_k - 1]
        kept = {token for token in kept if values[token] >= smallest}
    highest = max(values)
    weights = {token: math.exp(values[token] - highest) for token in kept}
    if top_p < 1:
        total, mass, nucleus = math.fsum(weights.values()), 0.0, {}
        # Ascending stable order read backwards: among equal values the highest index comes first, as in transformers.
        for token in sorted(weights, key=lambda token: (values[token], token), reverse=True):
            if nucleus and mass >= top_p:
                break
            nucleus[token] = weights[token]
            mass += weights[token] / total
        weights = nucleus
    total = math.fsum(weights.values())
    for token, weight in weights.items():
        probabilities[token] = weight / total
    return probabilities


def greedy(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """The `count` tokens that follow `prompt` when always taking the lowest-index maximum."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(best(next_logits(model, tokens)))
    return tokens[len(prompt) :]


def sps_scan(rows: list[list[float]] | list[torch.Tensor], drafted: list[int]) -> Round:
    """Greedy verification of K drafts against target logits [K+1][V]: keep drafts up to the first mismatch."""
    for position, token in enumerate(drafted):
        wanted = best(rows[position])
        if token != wanted:
            return Round(drafted, position, wanted, [])
    return Round(drafted, len(drafted), best(rows[len(drafted)]), [])


def csd_scan(
    rows: list[list[float]] | list[torch.Tensor], drafted: list[int], counts: Counts, lam: int, tau: float
) -> Round:
    """Greedy verification with rescues. `rows` is [K+1][V] raw target logits; `counts` is mutated.

    A mismatch (d, t) is rescued when its count so far is at least `lam` and z(d) - z(t) is at least ln `tau`.
    The count grows by one after the look-up, rescued or not. A rescued draft is accepted and the scan goes on.
    """
    threshold = math.log(tau) if tau > 0 else -math.inf
    rescued = []
    for position, token in enumerate(drafted):
        wanted = best(rows[position])
        if token == wanted:
            continue
        seen = counts.get((token, wanted), 0)
        gap = float(rows[position][token]) - float(rows[position][wanted])
        counts[(token, wanted)] = seen + 1
        if seen >= lam and gap >= threshold:
            rescued.append(position)
        else:
            return Round(drafted, position, wanted, rescued)
    return Round(drafted, len(drafted), best(rows[len(drafted)]), rescued)


def _draft_and_score(
    target: PreTrainedModel, draft: PreTrainedModel, tokens: list[int], gamma: int
) -> tuple[list[int], list[torch.Tensor]]:
    """`gamma` greedy draft tokens and the target's logits [gamma+1][V], each row from its own full forward."""
    drafted = greedy(draft, tokens, gamma)
    return drafted, [next_logits(target, tokens + drafted[:position]) for position in range(gamma + 1)]


def rounds_by(
    scan: Callable[[list[torch.Tensor], list[int], list[int]], Round],
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: list[int],
    count: int,
    gamma: int,
) -> list[Round]:
    """`count` greedy rounds of `gamma` drafts; `scan(rows, drafted, text)` says what becomes of each round's drafts."""
    text, done = list(prompt), []
    for _ in range(count):
        drafted, rows = _draft_and_score(target, draft, text, gamma)
        done.append(scan(rows, drafted, text))
        text += committed(done[-1:])
    return done


def sps_greedy(
    target: PreTrainedModel, draft: PreTrainedModel, prompt: list[int], count: int, gamma: int
) -> list[Round]:
    """Greedy speculative rounds with `gamma` drafts each, until at least `count` tokens are committed.

    The last round is not shortened, so cut the joined tokens at `count` before comparing.
    """
    tokens, rounds = list(prompt), []
    while len(tokens) - len(prompt) < count:
        drafted, rows = _draft_and_score(target, draft, tokens, gamma)
        rounds.append(sps_scan(rows, drafted))
        tokens += committed(rounds[-1:])
    return rounds


def csd_greedy(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: list[int],
    rounds: int,
    gamma: int,
    counts: Counts,
    lam: int,
    tau: float,
) -> list[Round]:
    """Exactly `rounds` greedy rounds with rescues from the memory `counts`, which is mutated as by `csd_scan`."""

    def scan(rows: list[torch.Tensor], drafted: list[int], text: list[int]) -> Round:
        return csd_scan(rows, drafted, counts, lam, tau)

    return rounds_by(scan, target, draft, prompt, rounds, gamma)


def committed(rounds: list[Round]) -> list[int]:
    """All tokens the rounds emit, in order, uncut."""
    return [token for item in rounds for token in [*item.drafted[: item.accepted], item.token]]


def patterned_counts(vocab: int = 96, lam: int = 2) -> Counts:
    """A made-up starting memory over all pairs, with counts 0..lam+1 spread evenly; pairs of count 0 are absent.

    Random models seldom repeat a mismatch, so rescues need such a start.
    """
    counts = {(d, t): (7 * d + 3 * t) % (lam + 2) for d in range(vocab) for t in range(vocab) if d != t}
    return {pair: count for pair, count in counts.items() if count}


@torch.no_grad()
def text_distribution(
    model: PreTrainedModel, prompt: list[int], count: int, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> np.ndarray:
    """Exact probabilities [V, …, V] of every sampled text of `count` tokens after `prompt`; they sum to 1."""
    first = warp(next_logits(model, prompt), temperature, top_k, top_p).numpy()
    if count == 1:
        return first
    joint = np.zeros((len(first),) * count)
    for token, chance in enumerate(first):
        if chance > 0:
            joint[token] = chance * text_distribution(model, [*prompt, token], count - 1, temperature, top_k, top_p)
    return joint


def two_token_distribution(
    model: PreTrainedModel, prompt: list[int], temperature: float, top_k: int = 0, top_p: float = 1.0
) -> np.ndarray:
    """Exact probabilities [V, V] of the first and second sampled token after `prompt`."""
    return text_distribution(model, prompt, 2, temperature, top_k, top_p)


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """P-value of observed `counts` under `probabilities` (same shape, any rank; they must sum to 1).

    Cells of expected count below 5 are pooled into one; a pool still below 5 joins the smallest other cell.
    An observation in a cell of probability 0 gives 0.0; a single remaining cell gives 1.0.
    ValueError: shapes differ or the probabilities do not sum to 1.
    """
    observed = np.asarray(counts, dtype=float).ravel()
    chances = np.asarray(probabilities, dtype=float).ravel()
    if np.shape(counts) != np.shape(probabilities) or abs(chances.sum() - 1) > 1e-6:
        raise ValueError("counts and probabilities need the same shape, and probabilities must sum to 1")
    if observed[chances == 0].sum() > 0:
        return 0.0
    expected = chances * observed.sum()
    order = np.argsort(-expected, kind="stable")
    observed, expected = observed[order], expected[order]
    kept = int((expected >= 5).sum())
    cells = [(float(o), float(e)) for o, e in zip(observed[:kept], expected[:kept], strict=True)]
    pool = (float(observed[kept:].sum()), float(expected[kept:].sum()))
    if pool[1] >= 5 or not cells:
        cells.append(pool)
    else:
        cells[-1] = (cells[-1][0] + pool[0], cells[-1][1] + pool[1])
    if len(cells) < 2:
        return 1.0
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    return float(stats.chi2.sf(statistic, len(cells) - 1))


# A memory example worked by hand: vocabulary of 5, three drafts a round, lambda = 2, tau = 0.5 (ln 0.5 = -0.693).
# The rows are the raw target logits of the three drafts and the bonus position. Pairs are (draft, target).
WORKED_LAMBDA = 2
WORKED_TAU = 0.5
WORKED_START: Counts = {(1, 0): 2, (2, 0): 1}
WORKED_ROUNDS: list[dict] = [
    {
        # 1: draft 1, target 0. Count 2 >= 2: hit. 2.5 - 3.0 = -0.5 >= -0.693: gate passes. Rescued; (1,0) becomes 3.
        # 2: draft 3, target 3. Match, memory untouched.
        # 3: draft 2, target 0. Count 1 < 2: miss, although the gate passes (1.5 - 2.0 = -0.5). Emit 0; (2,0) becomes 2.
        "logits": [[3.0, 2.5, 0, 0, 0], [0, 0, 0, 4.0, 0], [2.0, 0, 1.5, 0, 0], [0, 0, 0, 0, 9.0]],
        "drafted": [1, 3, 2],
        "accepted": 2,
        "token": 0,
        "rescued": [0],
        "memory": {(1, 0): 3, (2, 0): 2},
    },
    {
        # 1: draft 2, target 0. Count 2 >= 2, reached in the round before: hit. Gap -0.5: passes. Rescued; (2,0) -> 3.
        # 2: draft 1, target 0. Count 3: hit. 2.0 - 3.0 = -1.0 < -0.693: gate fails. Emit 0; (1,0) still becomes 4.
        # 3: never scanned; it would have matched.
        "logits": [[2.0, 0, 1.5, 0, 0], [3.0, 2.0, 0, 0, 0], [0, 0, 0, 0, 5.0], [0, 9.0, 0, 0, 0]],
        "drafted": [2, 1, 4],
        "accepted": 1,
        "token": 0,
        "rescued": [0],
        "memory": {(1, 0): 4, (2, 0): 3},
    },
    {
        # 1: draft 4, target 4. Match.
        # 2: tokens 0 and 2 tie at 1.0, so the target is 0 and draft 2 a mismatch. Count 3: hit. Gap 0: passes.
        #    Rescued; (2,0) becomes 4.
        # 3: draft 3, target 3. Match. All accepted, so the fourth row gives the bonus token 1.
        "logits": [[0, 0, 0, 0, 1.0], [1.0, 0, 1.0, 0, 0], [0, 0, 0, 5.0, 0], [0, 2.0, 0, 0, 0]],
        "drafted": [4, 2, 3],
        "accepted": 3,
        "token": 1,
        "rescued": [1],
        "memory": {(1, 0): 4, (2, 0): 4},
    },
    {
        # 1: draft 0, target 1. The pair (0,1) is unseen: miss; (1,0) is another pair. Emit 1; (0,1) becomes 1.
        # 2 and 3: never scanned, so their mismatches do not enter the memory.
        "logits": [[2.9, 3.0, 0, 0, 0], [3.0, 2.9, 0, 0, 0], [3.0, 2.9, 0, 0, 0], [0, 0, 0, 0, 9.0]],
        "drafted": [0, 1, 1],
        "accepted": 0,
        "token": 1,
        "rescued": [],
        "memory": {(0, 1): 1, (1, 0): 4, (2, 0): 4},
    },
]
