"""followers on the bundled pair, in float64: greedy texts are vanilla's token for token, whatever the network says."""

import pytest
import torch
from followers import method

import specbench

PROMPT = "Tom has 3 apples and buys 4 more. How many apples does he have?"


@pytest.fixture(scope="module")
def pair():
    return specbench.load_pair("pocket", dtype="float64")


def test_followers_are_the_likeliest():
    tensors = {"read.weight": torch.eye(3), "say.weight": torch.tensor([[0.0, 2, 0], [1, 0, 0], [0, 1, 3]])}
    assert method.followers_of(tensors) == [1, 0, 2]


def test_greedy_texts_are_vanillas(pair, tmp_path):
    from specbench.engine.models.heads import write_head

    torch.manual_seed(0)
    head = tmp_path / "head.safetensors"
    write_head(head, method.KIND, method.Network(pair.vocabulary, 8).state_dict(), pair, {})
    with specbench.permitted(methods=["followers"]):
        decoded = specbench.decode(PROMPT, pair, "followers", max_new_tokens=64, settings={"head": str(head)})
    assert decoded.tokens == specbench.decode(PROMPT, pair, "vanilla", max_new_tokens=64).tokens
    assert decoded.rounds.drafted.sum() > 0
