"""SAM-Decoding: its drafts by hand and as of its own code, texts, and the target's law."""

import oracle
import pytest
import torch
from builders_engine import build, lonely, made
from gates import DEVICE, GREEDY, decode, lively_prompt
from law import Fit, fit
from official_cases import official_cases
from recalled import recalled
from refusals import one_line_error

from specbench import config
from specbench.engine.types import Sampling
from specbench_extras.sam import sam
from specbench_extras.sam.sam import Sam, SamDrafter, Settings, drafter

SHIPPED = config.load_method("sam").values
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it


def chosen(**changes) -> Settings:
    return Settings(**{**SHIPPED, **changes})


def drafted(text: list[int], **changes) -> list[int]:
    one = drafter(chosen(**changes), None, torch.device("cpu"))
    one.begin(text[:1])
    return one.propose(text, one.settings.gamma, GREEDY, torch.Generator()).tokens.tolist()


def test_drafts_by_hand():
    """1 2 3 stands at the beginning and later; 2 3 at the beginning, too."""
    text = [1, 2, 3, 4, 5, 6, 1, 2, 3, 9, 1, 2, 3]
    assert drafted(text, shortest=3, gamma=4) == [4, 5, 6, 1], "its first place"
    assert drafted(text, shortest=3, gamma=30) == [4, 5, 6, 1, 2, 3, 9, 1, 2], "all that is known but the last token"
    assert drafted(text, shortest=4, gamma=4) == []
    text = [3, 7, 8, 1, 2, 3, 9, 1, 2, 3]
    assert drafted(text, shortest=1, gamma=2) == [9, 1], "after 1 2 3"
    assert drafted(text, shortest=1, gamma=4) == [7, 8, 1, 2], "too few follow 1 2 3, and more than four follow 3"
    assert drafted(text, shortest=4, gamma=4) == []
    assert drafted([1, 2, 3], shortest=1) == drafted([5], shortest=1) == []


def test_drafts_are_those_of_its_own_code():
    """72 drafts of 12 texts; what is too short for a draft goes to another method there, and to none here."""
    short = full = 0
    for case in official_cases("sam"):
        one, text = SamDrafter(chosen(), torch.device("cpu")), []
        for tokens, (last, length, expected) in zip(case["rounds"], case["drafts"], strict=True):
            text = text + tokens
            one.begin([])
            draft = one.propose([*text, last], 39, GREEDY, torch.Generator()).tokens.tolist()
            assert draft == (expected if length >= chosen().shortest else [])
            short, full = short + (length < chosen().shortest), full + (len(draft) == 39)
    assert short > 10 and full > 5


def test_the_draft_model_drafts_where_no_suffix_is_long_enough():
    method = build(made(), "sam", fallback="draft", fallback_gamma=3, gamma=5, shortest=2)
    _, rounds = decode(method, [5, 6, 7, 5, 6, 7, 5, 6], 30)
    assert method.reach == 6 and 3 in {step.drafted for step in rounds[1:]}
    method.drafter.begin([5])
    assert method.drafter.propose([5, 6, 7, 8, 9, 5, 6], 5, GREEDY, torch.Generator()).tokens.tolist() == [7, 8, 9, 5]


def test_greedy_texts_of_a_prompt_that_holds_them():
    prompt, text = lively_prompt("llama", 12, 30)
    log = [*prompt, *text, *prompt]
    expected, _ = decode(build(lonely(architecture="llama"), "vanilla"), log, 20)
    method = build(lonely(architecture="llama"), "sam", shortest=1, gamma=4)
    tokens, rounds = decode(method, log, 20)
    assert tokens == expected and sum(step.drafted for step in rounds) > 5


def drawn(sampling: Sampling) -> Fit:
    model = oracle.tiny("llama", seed=1, vocab=4).to(DEVICE)
    one = chosen(gamma=3, shortest=1)
    method = Sam(recalled(model, "target"), drafter(one, None, torch.device(DEVICE)), one)
    return fit(method, model, [1, 3, 2, 0, 1, 1, 2, 3, 0, 0], 4, sampling, 500)


@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.8, top_p=0.9)), ids=str)
def test_samples_from_the_target(sampling):
    p, accepted, rejected = drawn(sampling)
    assert p > ALPHA and accepted > 100 and rejected > 100


def test_a_greedy_test_of_sampled_texts_is_found(monkeypatch):
    wrong = lambda draft, scored, sampling, rng: sam.exact(draft, scored, GREEDY, rng)  # noqa: E731
    monkeypatch.setattr(Sam, "accept", staticmethod(wrong))
    assert drawn(Sampling(1.0)).p < ALPHA


def test_what_ships_and_what_is_refused():
    method = build(lonely(), "sam")
    assert method.lossless and method.reach == 40 and method.inputs() == {} and method.state() is None
    with one_line_error("sam: its rounds are of up to 40 tokens, but lonely reads 39"):
        build(lonely(39), "sam")
    with one_line_error("lonely has no draft model"):
        build(lonely(), "sam", fallback="draft")
