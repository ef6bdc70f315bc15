"""A model's own generation_config.json: what a run does not take up is told, and nothing else."""

import pytest
import transformers

from specbench.config import SamplingSpec
from specbench.config.generation import unused, unused_words

GREEDY = SamplingSpec()


def own(**settings):
    return transformers.GenerationConfig(**settings).to_dict()


@pytest.mark.parametrize(
    ("settings", "sampling", "expected"),
    [
        ({}, GREEDY, {}),
        ({"do_sample": False, "max_new_tokens": 100, "eos_token_id": [1, 2], "pad_token_id": 0}, GREEDY, {}),
        ({"temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0, "num_beams": 1}, GREEDY, {}),
        ({"repetition_penalty": 1.05}, GREEDY, {"repetition_penalty": 1.05}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.95}, GREEDY, {"temperature": 0.6, "top_p": 0.95}),
        ({"temperature": 0.6, "top_p": 0.95}, SamplingSpec(temperature=0.6, top_p=0.95), {}),
        ({"temperature": 0.6, "top_k": 20}, SamplingSpec(temperature=1.0, top_k=20), {"temperature": 0.6}),
        (
            dict.fromkeys(("no_repeat_ngram_size", "min_length"), 3),
            GREEDY,
            {"no_repeat_ngram_size": 3, "min_length": 3},
        ),
    ],
)
def test_what_a_model_asks_for_and_a_run_leaves_out(settings, sampling, expected):
    assert unused(own(**settings), sampling) == expected


def test_the_line_says_how_to_take_it_up():
    words = unused_words({"temperature": 0.7, "top_k": 20, "no_repeat_ngram_size": 3})
    assert "asks for temperature 0.7, top_k 20, no_repeat_ngram_size 3," in words
    assert "--temperature 0.7 --top-k 20 takes them up; no_repeat_ngram_size cannot be taken up" in words
    assert unused_words({}) == ""
