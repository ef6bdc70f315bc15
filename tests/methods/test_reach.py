"""`reach` holds: no round reads more than its method declares, and texts go on to the end of the context."""

import pytest
import torch
from builders_engine import build
from cases import mostly_long
from gates import labelled, made, tiny
from refusals import one_line_error

from specbench.engine.session import Session
from specbench.engine.types import Method, Sampling

COUNT = 12
SHORT = 256  # positions of which a text of pocket is, which has room for thousands
GAMMAS = (1, 4, 40)
WITHOUT = {  # sizes that a method has no sense at, or that make its rounds longer than the tiny models' context
    ("bandit", 1),
    ("fly, no entropy is enough", 1),
    ("mirror", 40),
    ("rsd, constant", 1),
}
# Of methods with a head or adapters that ship with pocket: small and large sizes of their rounds.
SIZES = {
    "chain": ({"gamma": 1}, {"gamma": 40}),
    "eagle": ({"total_tokens": 2, "top_k": 1, "depth": 0}, {"total_tokens": 200, "top_k": 20, "depth": 40}),
    "length": ({"shortest": 1, "longest": 1}, {"longest": 40}),
    "ranks": ({"nodes": 1}, {"nodes": 200}),
    "self": ({"gamma": 1}, {"gamma": 12}),
}
SHIPPED = {
    "eagle": "eagle",
    "eagle3": "eagle",
    "eagle3-typical": "eagle",
    "hydra": "ranks",
    "judge": "chain",
    "kangaroo": "chain",
    "medusa": "ranks",
    "specdecpp-pocket": "length",
    "swift": "self",
}


@pytest.fixture
def read(monkeypatch):
    """The most tokens of a forward of the target, and the highest position after the text, of each model's sequence."""
    most = {"tokens": 0, "position": 0}
    fed_too = Session._fed_too

    def counted(session: Session, tokens) -> None:
        fed_too(session, tokens)
        if session.role == "target" and session.prompt_length is None:
            most["tokens"] = max(most["tokens"], len(tokens))
        tree = session._tree
        most["position"] = max(most["position"], tree.root + 1 + max(tree.depths) if tree else session._length)

    monkeypatch.setattr(Session, "_fed_too", counted)
    return most


def furthest(method: Method, prompt: list[int], sampling: Sampling, read: dict[str, int]) -> int:
    """How far beyond the text a round of a method reads at most, while it decodes COUNT tokens."""
    method.reset("task")
    text, far = len(prompt), 0
    for number, round_ in enumerate(method.rounds(prompt, sampling, torch.Generator().manual_seed(1))):
        if number:  # the prefill reads the prompt; what it reads ahead, as the oracle does, ends with the context
            far = max(far, read["tokens"], read["position"] - text)
        text += len(round_.tokens)
        read |= {"tokens": 0, "position": 0}
        if text >= len(prompt) + COUNT:
            return far
    raise AssertionError("a method decodes without end")


def assert_holds(method: Method, length: int, read: dict[str, int]) -> None:
    """By texts that end where a context of so many positions does, greedy and sampled."""
    prompt = [5 + place % 80 for place in range(length - COUNT - method.reach)]
    assert prompt, "the rounds leave room for a prompt"
    for sampling in (Sampling(), Sampling(1.0)):
        try:
            method.check(sampling)
        except ValueError:
            continue
        assert furthest(method, prompt, sampling, read) <= method.reach, sampling


@mostly_long("gamma", GAMMAS, (1, 40))
@pytest.mark.parametrize("architecture", ("opt",))
def test_rounds_of_every_method_are_within_what_it_declares(architecture, gamma, read):
    """OPT has an embedding for each position: a text that reads beyond them fails."""
    models = tiny(architecture)
    for label in labelled():
        if (label, gamma) not in WITHOUT:
            assert_holds(made(label, models, gamma), models.context, read)


@mostly_long("name", SHIPPED, ("eagle3", "medusa", "specdecpp-pocket"))
def test_rounds_of_trained_heads_are_within_what_they_declare(name, pocket, read):
    for changes in SIZES[SHIPPED[name]]:
        assert_holds(build(pocket, name, **changes), SHORT, read)


def test_a_declared_reach_that_is_too_short_is_found(read):
    models = tiny("opt")
    method = made("sps", models, 4)
    method.reach = 3
    with pytest.raises(AssertionError):
        assert_holds(method, models.context, read)


def test_rounds_longer_than_the_context_are_refused_by_what_they_declare():
    models = tiny("llama")
    assert build(models, "sps", gamma=254).reach == 255
    with one_line_error("sps: its rounds are of up to 256 tokens, but tiny reads 256 with the text"):
        build(models, "sps", gamma=255)
