"""Cascade drafting: its drafts by hand and against the draft model alone; lossless at any temperature."""

import oracle
import pytest
import torch
from builders_engine import build, made
from cases import architectures, mostly_long
from gates import DEVICE, GREEDY, decode, lively_prompt, pair
from law import Fit, fit
from recalled import recalled
from refusals import one_line_error
from tabled import V, warped

from specbench.engine.accept import exact
from specbench.engine.drafters import ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.session import Session
from specbench.engine.types import Draft, Sampling
from specbench.methods.chains.sps import SpS
from specbench.methods.lossy.fly import LookupDrafter
from specbench_extras.cs_drafting import cs_drafting
from specbench_extras.cs_drafting.cs_drafting import Lengthened

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it


class Told:
    """A drafter of the tokens 1 and 2, drawn from distributions over 5 tokens."""

    lengths = Lengths()

    def propose(self, context, gamma, sampling, rng):
        assert gamma == 2
        probs = None if sampling.greedy else torch.tensor([[0.1, 0.9, 0, 0, 0], [0.5, 0, 0.5, 0, 0]])
        return Draft(torch.tensor([1, 2]), probs)


def test_a_draft_by_hand():
    """The text 1 2 3 4 0, then 1 2: that was followed by 3 4 0."""
    drafter = Lengthened(Told(), 3, 2)
    for sampling in (GREEDY, Sampling(1.0)):
        draft = drafter.propose([1, 2, 3, 4, 0], 5, sampling, torch.Generator())
        assert draft.tokens.tolist() == [1, 2, 3, 4, 0] and draft.parents is None
    assert torch.equal(draft.probs[:2], torch.tensor([[0.1, 0.9, 0, 0, 0], [0.5, 0, 0.5, 0, 0]]))
    assert draft.probs[2:].tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]
    nothing = drafter.propose([4, 4], 5, Sampling(1.0), torch.Generator())
    assert nothing.tokens.tolist() == [1, 2] and nothing.probs.shape == (2, 5)


def test_greedy_drafts_begin_as_the_draft_models_own():
    prompt, text = lively_prompt("llama", 12, 30)
    _, draft = pair("llama")
    alone, cascaded = ModelDrafter(Session(draft, "draft")), LookupDrafter(Session(draft, "draft"), 3, 4)
    result = Lengthened(cascaded, 3, 3)
    for one in (alone, result):
        one.begin(prompt)
    lengths = set()
    for end in range(1, 30, 3):
        context = [*prompt, *text[:end], *text[:end]]
        expected = alone.propose(context, 5, GREEDY, torch.Generator()).tokens.tolist()
        drafted = result.propose(context, 8, GREEDY, torch.Generator()).tokens.tolist()
        assert drafted[:5] == expected
        lengths.add(len(drafted))
    assert len(lengths) > 1


def test_drafts_that_speculate_follow_the_draft_models_law():
    """800 drafts of two tokens after a text that repeats itself: inner guesses stand and fall."""
    model, sampling = oracle.tiny("llama", seed=2, vocab=V).to(DEVICE), Sampling(0.8)

    def row(text):
        return warped(oracle.next_logits(model, text).double(), sampling)

    prompts = [[1, guess, 0, 1, guess, 0, 1] for guess in range(V)]
    prompt = next(prompt for prompt in prompts if 0.25 < row(prompt)[prompt[1]] < 0.75)
    expected = row(prompt)[:, None] * torch.stack([row([*prompt, token]) for token in range(V)])
    counts, rng = torch.zeros(V, V), torch.Generator(DEVICE).manual_seed(0)
    drafter = Lengthened(LookupDrafter(recalled(model, "draft"), 2, 3), 0, 2)
    drafter.begin(prompt)
    for _ in range(800):
        first, second = drafter.propose(prompt, 2, sampling, rng).tokens.tolist()
        counts[first, second] += 1
    assert oracle.chi_square(counts.numpy(), expected.numpy()) > ALPHA
    assert 150 < counts[prompt[1]].sum() < 650


@architectures
def test_greedy_texts_are_the_targets(architecture):
    prompt, text = lively_prompt(architecture, 12, 30)
    target, draft = pair(architecture)
    for later in (0, 3):
        drafter = Lengthened(LookupDrafter(Session(draft, "draft"), 3, 4), later, 3)
        assert decode(SpS(Session(target, "target"), drafter, 4 + later), prompt, 30)[0] == text


def drawn(sampling: Sampling, draws: int = 500) -> Fit:
    target, draft = (oracle.tiny("llama", seed=seed, vocab=V).to(DEVICE) for seed in (1, 2))
    drafter = Lengthened(LookupDrafter(recalled(draft, "draft"), 2, 2), 2, 2)
    method = SpS(recalled(target, "target"), drafter, 4)
    return fit(method, target, [1, 3, 2, 0, 1, 3], 4, sampling, draws)


@mostly_long("sampling", (Sampling(1.0), Sampling(0.8, top_k=3)), lambda sampling: sampling.top_k, ids=str)
def test_samples_from_the_target(sampling):
    p, accepted, rejected = drawn(sampling)
    assert p > ALPHA and accepted > 100 and rejected > 100


@pytest.mark.long
def test_looked_up_tokens_as_if_they_were_the_models_are_found(monkeypatch):
    """Wrong: guesses that the draft model accepts are told as drawn from a uniform distribution."""
    propose = Lengthened.propose

    def wrong(self, *asked):
        draft = propose(self, *asked)
        return Draft(draft.tokens, torch.full_like(draft.probs, 1 / V))

    monkeypatch.setattr(cs_drafting.Lengthened, "propose", wrong)
    assert drawn(Sampling(1.0)).p < ALPHA


def test_what_ships_and_what_is_refused():
    method = build(made(), "cs-drafting")
    assert method.lossless and method.reach == 11 and method.accept is exact
    for name in ("gamma", "ngram", "guesses"):
        with one_line_error(f"cs-drafting: {name}"):
            build(made(), "cs-drafting", **{name: 0})
    with one_line_error("cs-drafting: its rounds are of up to 5007 tokens"):
        build(made(), "cs-drafting", later=5000)
