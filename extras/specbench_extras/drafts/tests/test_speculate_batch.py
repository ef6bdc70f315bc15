"""Many texts decoded together by speculative decoding: each as it is alone, and of the target's law."""

import numpy as np
import oracle
import torch
from batches import GAMMA, alone, made, several
from cases import architectures
from gates import DEVICE, GREEDY

from specbench.engine.accept import exact
from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.session import Session
from specbench.engine.speculate import speculate
from specbench.engine.types import Sampling
from specbench_extras.drafts.batch import Batch
from specbench_extras.drafts.speculate_batch import speculate_all

ALPHA = 1e-4  # of a right law being refused; wrong ones must fall below it


def ending(count: int) -> Ending:
    return Ending(Limits(count, frozenset()), lambda ids: "")


def rng() -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(0)


@architectures
def test_greedy_rounds_are_those_of_each_text_alone(architecture):
    models = made(architecture).models
    asked = several(architecture)
    endings = [ending(count) for _, count in asked]
    batches = (Batch(models[role], len(asked)) for role in ("target", "draft"))
    together = speculate_all(*batches, GAMMA, [prompt for prompt, _ in asked], endings, GREEDY, rng())
    assert [one.tokens for one in endings] == alone(architecture)
    assert len(set(endings[0].tokens)) > 11
    accepted = []
    for (prompt, count), rounds in zip(asked, together, strict=True):
        drafter = ModelDrafter(Session(models["draft"], "draft"))
        target = Session(models["target"], "target")
        expected = until_end(speculate(target, drafter, exact, GAMMA, prompt, GREEDY, rng()), ending(count))
        for mine, other in zip(rounds, expected, strict=True):
            assert (mine.tokens, mine.truncated) == (other.tokens, other.truncated)
            assert (mine.verdict and mine.verdict.drafted) == (other.verdict and other.verdict.drafted)
            accepted.append(mine.accepted)
    assert accepted.count(0) > 5 and sum(accepted) > 5


def test_a_text_that_has_ended_reads_no_further_than_one_alone():
    """Its model has places for prompt, answer and one draft; the text waits for four others, which are longer."""
    filled, count = 40, 2
    model = oracle.tiny("opt", max_position_embeddings=filled + count + GAMMA).to(DEVICE)
    prompts = [oracle.prompts(1, length=filled, seed=3)[0], *oracle.prompts(4, length=2, seed=4)]
    counts = [count, 30, 30, 30, 30]
    endings = [ending(length) for length in counts]
    speculate_all(Batch(model, 5), Batch(model, 5), GAMMA, prompts, endings, GREEDY, rng())
    assert [len(one.tokens) for one in endings] == counts


def test_sampled_texts_follow_the_target_and_not_the_draft():
    """Five tokens of a vocabulary of four, γ = 2: the prefill's, those of one round, and of the next."""
    target, draft = (oracle.tiny("llama", seed=seed, vocab=4) for seed in (0, 3))
    prompts = [[1, 2, 3], [2]] * 3000
    endings = [ending(5) for _ in prompts]
    batches = (Batch(model.to(DEVICE), len(prompts)) for model in (target, draft))
    rounds = speculate_all(*batches, 2, prompts, endings, Sampling(1.5), rng())
    full = sum(one.accepted == 2 for text in rounds for one in text)
    assert 500 < full < 0.9 * sum(len(text) - 1 for text in rounds)
    for which, prompt in enumerate(([1, 2, 3], [2])):
        counts = np.zeros((4,) * 5)
        for one in endings[which::2]:
            counts[tuple(one.tokens)] += 1
        laws = [oracle.text_distribution(model.cpu(), prompt, 5, 1.5) for model in (target, draft)]
        assert oracle.chi_square(counts, laws[0]) > ALPHA > oracle.chi_square(counts, laws[1])
