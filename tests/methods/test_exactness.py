"""Gate: every lossless method equals vanilla token for token, and vanilla equals two independent references."""

import itertools
from dataclasses import replace

import oracle
import pytest
import torch
from cases import mostly_long
from gates import DEVICE, SETTINGS, csd, decode, labelled, lively_prompt, made, methods, pair, tiny, with_settings
from judging import assert_rounds

from specbench.config import UserError
from specbench.engine.types import Sampling

COUNT = 28
# Shorter than, about as long as, and far longer than Gemma 2's window of 16 in the tiny models.
LENGTHS = (1, 3, 15, 17, 50)
# One of every way to draft: a chain, several of them, trees of a model, what the text said before, and no draft model.
KINDS = (
    "sps",
    "mdsd",
    "rsd, beam",
    "opt-tree",
    "pld, last",
    "suffix, tree",
    "lookahead",
    "cs-drafting",
    "cospec, never",
)


@mostly_long("architecture, length", itertools.product(oracle.ARCHITECTURES, LENGTHS), (("llama", 50), ("gemma2", 15)))
def test_lossless_methods_equal_vanilla(architecture, length):
    """As new, and after another prompt, of which nothing may be left."""
    other, first = lively_prompt(architecture, 20, COUNT)
    prompt, vanilla = lively_prompt(architecture, length, COUNT)
    for name, method in methods(architecture, gamma=4).items():
        assert decode(method, other, 12)[0] == first[:12], name
        assert decode(method, prompt, COUNT)[0] == vanilla, f"{name} after another prompt"


@pytest.mark.parametrize(
    "architecture", [architecture for architecture in oracle.ARCHITECTURES if architecture not in ("llama", "gemma2")]
)
def test_every_way_to_draft_equals_vanilla(architecture):
    prompt, vanilla = lively_prompt(architecture, 17, COUNT)
    for label in KINDS:
        assert decode(made(label, tiny(architecture), 4), prompt, COUNT)[0] == vanilla, label


def test_methods_of_trees_equal_vanilla_where_the_target_reads_chains_only():
    """Of each tree its path of first children is read; `lookahead` and what has no such path is refused in a line."""
    models = replace(tiny("llama"), chains_only=frozenset({"target"}))
    prompt, vanilla = lively_prompt("llama", 50, COUNT)
    refused, deeper = set(), set()
    for label, (name, _) in labelled().items():
        method = made(label, models, 4)
        if name not in SETTINGS and not (method.lossless and method.combination is None):
            continue
        try:
            tokens, rounds = decode(method, prompt, COUNT)
        except UserError as error:
            assert "reads chains only" in str(error) and "\n" not in str(error), label
            refused.add(name)
            continue
        assert tokens == vanilla, label
        if any(len(round_.verdict.path) > 1 for round_ in rounds[1:] if round_.verdict and round_.verdict.parents):
            deeper.add(name)
    assert refused == {"lookahead"}
    assert {"rsd", "mdsd", "sequoia", "eagle2", "opt-tree"} <= deeper


@pytest.mark.parametrize("length", (3, 50))
@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_vanilla_equals_transformers_and_a_decoder_without_cache(architecture, length):
    prompt, text = lively_prompt(architecture, length, COUNT)
    target, _ = pair(architecture)
    ids = torch.tensor([prompt], device=DEVICE)
    settings = {"max_new_tokens": COUNT, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    theirs = target.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    assert text == theirs[0, length:].tolist()
    if DEVICE == "cpu":
        assert text[:16] == oracle.greedy(target, prompt, 16)


@mostly_long("architecture, gamma", itertools.product(("llama", "gemma2"), (1, 2, 7)), (("llama", 7), ("gemma2", 2)))
def test_sps_rounds_equal_the_reference(architecture, gamma):
    """Not the text only: what is drafted, how much of it stands, and what follows, round by round."""
    (prompt,) = oracle.prompts(1, length=9, seed=gamma)
    target, draft = oracle.tiny_pair(architecture)
    # The reference has no prefill round: it starts behind the prompt, the engine behind the prompt's first token.
    first = oracle.greedy(target, prompt, 1)
    expected = oracle.sps_greedy(target, draft, prompt + first, 24, gamma)
    _, rounds = decode(with_settings("sps", tiny(architecture), gamma, {}), prompt, 200)
    assert_rounds(rounds, expected)
    if gamma > 1:
        assert len({r.accepted for r in expected}) > 1


@mostly_long("architecture", ("llama", "qwen3"), ("llama",))
def test_csd_rounds_equal_the_reference(architecture):
    """Rescues included: path, token, rescued positions and the memory after every round."""
    (prompt,) = oracle.prompts(1, length=9)
    target, draft = oracle.tiny_pair(architecture)
    first = oracle.greedy(target, prompt, 1)
    counts = oracle.patterned_counts()
    method = csd(target, draft, 4, dict(counts), count_threshold=2, gate_threshold=0.2)
    expected = oracle.csd_greedy(target, draft, prompt + first, 24, 4, counts, 2, 0.2)
    _, rounds = decode(method, prompt, 200)
    assert_rounds(rounds, expected)
    assert sum(len(r.rescued) for r in expected) >= 3


def test_sampling_is_reproducible_and_seeded():
    """A seed gives the same text, another one another, and nothing is drawn from the generator that torch shares."""
    before = torch.random.get_rng_state()
    for name, method in methods("llama", 3).items():
        if name == "oracle":  # greedy texts only
            continue
        texts = []
        for seed in (1, 1, 2):
            method.reset()
            texts.append(decode(method, [1, 2, 3], 8, Sampling(1.0), seed)[0])
        assert texts[0] == texts[1] != texts[2], name
    assert torch.equal(before, torch.random.get_rng_state())
