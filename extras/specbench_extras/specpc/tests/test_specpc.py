"""SpecPC: scores against whole attention maps, the choice of tokens by hand, texts of the shortened prompt."""

import copy

import oracle
import pytest
import torch
from builders_engine import build, made
from gates import decode, pair
from refusals import one_line_error
from watched import Told

from specbench_extras.specpc.specpc import Settings, chosen, looked_at

SMALL = {"kept": 14, "window": 4, "skip": 1, "pool": 3, "neighbours": 1}
(PROMPT,) = oracle.prompts(1, length=40)


def whole_maps(model, prompt, window, skip):
    """The same scores from one forward over the prompt and the token that follows, one row at a time."""
    model = copy.deepcopy(model).cpu()
    text = [*prompt, oracle.greedy(model, prompt, 1)[0]]
    with torch.no_grad():
        maps = model(torch.tensor([text]), use_cache=False, output_attentions=True).attentions
    first, scores = len(text) - window - 1, [0.0] * len(prompt)
    for map_ in maps[min(skip, len(maps) - 1) :]:
        for head in map_[0].tolist():
            for row in range(first, len(text)):
                for place in range(len(prompt)):
                    weight = (row - first + 1) / (window + 1)
                    scores[place] = max(scores[place], weight * head[row][place])
    return scores


@pytest.mark.parametrize("architecture", ("llama", pytest.param("gemma2", marks=pytest.mark.long)))
@pytest.mark.parametrize("skip", (0, 8))
def test_scores_equal_those_of_whole_maps(architecture, skip):
    draft = pair(architecture)[1]
    usual = draft.config._attn_implementation
    result = looked_at(draft, PROMPT, 4, skip)
    torch.testing.assert_close(result.tolist(), whole_maps(draft, PROMPT, 4, skip), rtol=0, atol=1e-5)
    assert draft.config._attn_implementation == usual


def test_the_choice_by_hand():
    """Of twelve tokens the last two stay. Place 5 is best, with its neighbours, then 1, for two."""
    scores = torch.tensor([0.0, 0.5, 0, 0, 0, 0.9, 0, 0, 0.1, 0, 0, 0])
    alone = Settings(kept=7, window=2, skip=0, pool=1, neighbours=1, gamma=0)
    assert chosen(scores, alone) == [0, 1, 4, 5, 6, 10, 11]
    # A score spreads over three: 4, 5 and 6 are equal and the earliest is first, with 3 and 5.
    assert chosen(scores, alone.model_copy(update={"pool": 3})) == [3, 4, 5, 6, 7, 10, 11]
    assert chosen(scores, alone.model_copy(update={"neighbours": 0})) == [0, 1, 2, 5, 8, 10, 11]
    assert chosen(scores, alone.model_copy(update={"kept": 12})) == list(range(12))


@pytest.mark.parametrize("gamma", (0, 3))
def test_texts_are_those_of_the_shortened_prompt(gamma):
    watch = Told()
    method = build(made(), "specpc", watch, gamma=gamma, **SMALL)
    short = method.shortened(PROMPT)
    assert len(short) == 14 and short[-4:] == PROMPT[-4:] and watch.forwards[0][:3] == ("draft", 41, 0)
    left = iter(PROMPT)
    assert all(token in left for token in short)  # in order
    text, _ = decode(method, PROMPT, 12)
    target = copy.deepcopy(pair("llama")[0]).cpu()
    assert text == oracle.greedy(target, short, 12) != oracle.greedy(target, PROMPT, 12)


def test_a_short_prompt_stays():
    watch = Told()
    method = build(made(), "specpc", watch, **SMALL)
    text, _ = decode(method, PROMPT[:14], 8)
    assert text == oracle.greedy(copy.deepcopy(pair("llama")[0]).cpu(), PROMPT[:14], 8)
    assert all(role == "target" for role, *_ in watch.forwards)


def test_what_ships_and_what_is_refused():
    method = build(made(), "specpc")
    assert not method.lossless and method.reach == 1
    with one_line_error("kept (4) must be more than window (4)"):
        build(made(), "specpc", **SMALL | {"kept": 4})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kept": 0}, "specpc: kept"),
        ({"window": 0}, "specpc: window"),
        ({"pool": 0}, "specpc: pool"),
        ({"gamma": -1}, "specpc: gamma"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "specpc", **changes)
