"""A drafter sees of the target what it asks for: of the prompt whole or in parts, then of each round."""

import functools

import pytest
import torch
from gates import DEVICE, GREEDY, pair

from specbench.engine import speculate
from specbench.engine.accept import exact
from specbench.engine.drafters import Drafter
from specbench.engine.session import Session
from specbench.engine.types import Draft

PROMPT, LAYERS = [7, 70, 17, 3, 44, 9, 81, 2], (1, 0)
near = functools.partial(torch.allclose, atol=1e-5)  # transformers computes the softmax in float32


class Noting(Drafter):
    """Drafts the same tokens again and again, and keeps what it sees."""

    reads = LAYERS

    def __init__(self, prompt_logits: int, drafted: list[int]) -> None:
        self.prompt_logits, self.drafted = prompt_logits, drafted
        self.prompt, self.rounds = [], []

    def observe_prompt(self, tokens, scored):
        self.prompt.append((tokens, scored))

    def propose(self, context, gamma, sampling, rng):
        return Draft(torch.tensor(self.drafted, device=DEVICE), None)

    def observe(self, scored, verdict):
        self.rounds.append((scored, verdict))


def of_transformers(tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [n, V] and the states [n, 2 D] of LAYERS after every token, by one forward of the model itself."""
    with torch.inference_mode():
        out = pair("llama")[0](torch.tensor([tokens], device=DEVICE), output_hidden_states=True)
    return out.logits[0], torch.cat([out.hidden_states[layer][0] for layer in LAYERS], -1)


@pytest.mark.parametrize(
    ("asked", "parts", "rows"), [(1, [8], [1]), (5, [8], [5]), (99, [8], [8]), (0, [3, 3, 2], [3, 3, 2])]
)
def test_of_a_prompt(monkeypatch, asked, parts, rows):
    monkeypatch.setattr(speculate, "CHUNK", 3)
    target, drafter = Session(pair("llama")[0], "target"), Noting(asked, [1])
    target.forward([5, 6])  # of an earlier text
    said = speculate.read_prompt(target, drafter, PROMPT)
    logits, states = of_transformers(PROMPT)
    assert [len(tokens) for tokens, _ in drafter.prompt] == parts and target.tokens == PROMPT
    assert [token for tokens, _ in drafter.prompt for token in tokens] == PROMPT
    assert [len(scored.logits) for _, scored in drafter.prompt] == rows
    assert near(torch.cat([scored.logits for _, scored in drafter.prompt]), logits[-sum(rows) :])
    assert near(torch.cat([scored.hidden for _, scored in drafter.prompt]), states)
    assert near(said.logits[-1], logits[-1])


def test_of_rounds():
    """The first draft is right up to its third token, so the second round begins after what the target added."""
    model = pair("llama")[0]
    text = list(PROMPT)
    for _ in range(4):
        text.append(int(of_transformers(text)[0][-1].argmax()))
    right, wrong = text[len(PROMPT) + 1 :][:2], (text[-1] + 1) % 96
    drafter = Noting(1, [*right, wrong])
    rounds = speculate.speculate(Session(model, "target"), drafter, exact, 3, PROMPT, GREEDY, torch.Generator(DEVICE))
    first, second = next(rounds), next(rounds)
    assert first.tokens == text[len(PROMPT) : len(PROMPT) + 1] and second.tokens == text[len(PROMPT) + 1 :]
    ((scored, verdict),) = drafter.rounds
    logits, states = of_transformers([*text[: len(PROMPT) + 1], *drafter.drafted])
    assert (verdict.accepted, verdict.drafted) == (2, drafter.drafted)
    assert near(scored.logits, logits[-4:]) and near(scored.hidden, states[-4:])
