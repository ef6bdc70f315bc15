"""Verdicts on rows written down by hand, and methods that must decode alike, verdict for verdict."""

import oracle
import torch
from gates import DEVICE, GREEDY, decode, lively_prompt

from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Verdict


def judged(method, logits, drafted, sampling: Sampling = GREEDY, q=None, seed: int = 0, states=None) -> Verdict:
    """A method's verdict on draft tokens [K] of distributions q [K, V], by the target's logits and states [K + 1]."""
    wide = {"dtype": torch.float64, "device": DEVICE}
    tokens = torch.tensor(drafted, dtype=torch.long, device=DEVICE)
    draft = Draft(tokens, None if q is None else torch.tensor(q, **wide))
    hidden = None if states is None else torch.tensor(states, **wide)
    scored = Scored(torch.tensor(logits, **wide), hidden=hidden)
    return method.accept(draft, scored, sampling, torch.Generator(DEVICE).manual_seed(seed))


def assert_same_rounds(
    method: Method, other: Method, architecture: str, sampling: Sampling, count: int = 40, seed: int = 5
) -> list[Round]:
    """Both decode a lively prompt alike, and no draw of the generator is lost or added; returns the rounds."""
    prompt, _ = lively_prompt(architecture, 12, 30)
    expected, expected_rounds = decode(other, prompt, count, sampling, seed)
    result, rounds = decode(method, prompt, count, sampling, seed)
    assert result == expected
    assert [round_.verdict for round_ in rounds] == [round_.verdict for round_ in expected_rounds]
    return rounds


def assert_rounds(rounds: list[Round], expected: list[oracle.Round]) -> None:
    """Behind the prefill: what is drafted, how much of it stands, what follows and what is rescued, round by round."""
    results = [round_.verdict for round_ in rounds[1 : len(expected) + 1]]
    assert [(result.drafted, result.accepted, result.token, list(result.rescued)) for result in results] == list(
        map(tuple, expected)
    )
