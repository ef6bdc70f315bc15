"""Typical acceptance of trees: by hand, as Medusa's own code, by enumeration of all paths, and without a cache."""

import math

import numpy as np
import oracle
import pytest
import torch
from builders_engine import build
from gates import DEVICE, GREEDY, decode, lively_prompt, pair, tiny, with_settings
from hypothesis import given, settings
from hypothesis import strategies as st
from official_cases import official_cases
from refusals import one_line_error
from tiny_heads import trained

from specbench import config
from specbench.engine.models.eagle_head import layers_read
from specbench.engine.session import Session
from specbench.engine.types import Draft, Sampling, Scored
from specbench.engine.typical import Typical
from specbench.measure.manifest import follows_target
from specbench.methods.heads.eagle3 import Eagle3, EagleDrafter
from specbench.methods.heads.eagle3_typical import Settings

SHIPPED = config.load_method("eagle3-typical").values


RAW = Sampling(1.0)


def judged(tokens, parents, chances, sampling=RAW, seed=0, epsilon=0.25, delta=0.5, bonus="likeliest"):
    """A verdict by the target's probabilities after the context and after each token."""
    logits = torch.tensor(chances, dtype=torch.float64).log()
    draft = Draft(torch.tensor(tokens), None, parents)
    return Typical(epsilon, delta, bonus)(draft, Scored(logits), sampling, torch.Generator().manual_seed(seed))


EIGHTHS = [0.5, 0.25, 0.125, 0.125]  # the bound is δ exp(-H) = 0.149: 0 and 1 stand


def test_a_tree_by_hand():
    """1 and 0 after the context; after 1: 2 and 1; after 0: 1. The paths 1-1 and 0-1 stand, 2 does not.

    Where all rows are alike, 0-1 is the likelier (1/8 to 1/16), and 0, the argmax, follows. What the exact rule would
    have kept is drawn. At temperature 0 the exact rule decides: 0 stands, 1 after it does not.
    """
    tokens, parents = [1, 0, 2, 1, 1], (-1, -1, 0, 0, 1)
    verdict = judged(tokens, parents, [EIGHTHS] * 6)
    assert (verdict.path, verdict.token) == ((1, 4), 0)
    assert set(verdict.rescued) <= {1, 4}
    sure = [0.97, 0.01, 0.01, 0.01]
    verdict = judged(tokens, parents, [EIGHTHS, EIGHTHS, sure, sure, sure, sure])
    assert verdict.path == (0, 3), "a longer path goes before a likelier one"
    verdict = judged(tokens, parents, [sure] * 6)
    assert (verdict.path, verdict.token) == ((1,), 0)
    assert judged([3], (-1,), [EIGHTHS, sure]).path == ()
    greedy = judged(tokens, parents, [EIGHTHS] * 6, GREEDY)
    assert (greedy.path, greedy.rescued, greedy.token) == ((1,), (), 0)


def test_paths_are_those_of_medusas_own_code():
    """Paths and next tokens of 45 random trees, at temperatures 0, 0.7 and 1."""
    cases = official_cases("typical")
    assert len(cases) == 45 and sum(len(case["path"]) > 1 for case in cases) > 6
    for case in cases:
        rule = Typical(case["epsilon"], case["delta"])
        draft = Draft(torch.tensor(case["tokens"]), None, tuple(case["parents"]))
        scored = Scored(torch.tensor(case["logits"], dtype=torch.float64))
        verdict = rule(draft, scored, Sampling(case["temperature"]), torch.Generator())
        assert (list(verdict.path), verdict.token) == (case["path"], case["next"])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 9), temperature=st.sampled_from([0.7, 1.5]))
def test_the_path_is_the_best_of_all(seed, size, temperature):
    rng = np.random.default_rng(seed)
    parents, tokens = [], []
    while len(tokens) < size:
        parent, token = int(rng.integers(-1, len(tokens))), int(rng.integers(4))
        if (parent, token) not in zip(parents, tokens, strict=True):
            parents.append(parent)
            tokens.append(token)
    logits = torch.tensor(2 * rng.normal(size=(size + 1, 4)))
    draft, sampling = Draft(torch.tensor(tokens), None, tuple(parents)), Sampling(temperature)
    result = Typical(0.3, 0.4)(draft, Scored(logits), sampling, torch.Generator().manual_seed(seed))
    p = (logits / temperature).softmax(-1).numpy()

    def stands(node):
        row = p[parents[node] + 1]
        return row[tokens[node]] > min(0.3, 0.4 * math.exp((row * np.log(row)).sum()))

    best, most = (), (0, 0.0)
    for node in range(size):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        value = (len(path), sum(math.log(p[parents[n] + 1][tokens[n]]) for n in path))
        if all(map(stands, path)) and value > most:
            best, most = tuple(path), value
    assert result.path == best
    assert result.token == logits.argmax(-1).tolist()[best[-1] + 1 if best else 0]


def test_a_bonus_that_is_drawn_comes_from_all_of_p():
    """A token that fell may be drawn again: nothing was rejected at random."""
    counts = [0] * 4
    for seed in range(2000):
        verdict = judged([3, 2], (-1, -1), [EIGHTHS] * 3, seed=seed, bonus="drawn")
        assert verdict.path == ()
        counts[verdict.token] += 1
    assert oracle.chi_square(np.array(counts), np.array(EIGHTHS)) > 1e-4


def test_a_chain_is_a_tree_of_one_path():
    """The first tokens up to the one that does not stand; what follows is drawn from all of p, of drawn trees too."""
    rng, draft = torch.Generator(), torch.tensor([1, 0, 3, 1])
    logits = torch.tensor([EIGHTHS] * 5, dtype=torch.float64).log()
    q = torch.full((4, 4), 0.25, dtype=torch.float64)
    counts = np.zeros(4)
    for seed in range(400):
        results = [
            Typical(0.25, 0.5, "drawn")(Draft(draft, probs, parents), Scored(logits), RAW, rng.manual_seed(seed))
            for probs in (None, q)
            for parents in (None, (-1, 0, 1, 2))
        ]
        assert {verdict.path for verdict in results} == {(0, 1)}
        counts[results[-1].token] += 1
    assert oracle.chi_square(counts, np.array(EIGHTHS)) > 1e-4


@pytest.mark.parametrize("name", ("sps", "eagle2", "opt-tree", "sequoia", "rsd"))
def test_methods_take_the_rule(name):
    """Each commits typical tokens at T = 1, some of which the exact rule rejects, and says that it is lossy."""
    models = tiny("llama")
    method, exact = (
        with_settings(name, models, 4, {"rule": rule, "epsilon": 0.05, "delta": 0.2})
        for rule in ("typical", "token" if name == "sps" else "exact")
    )
    assert exact.lossless and not method.lossless
    assert follows_target(exact) and not follows_target(method)  # what a run's manifest says of them
    prompt, _ = lively_prompt("llama", 12, 30)
    assert decode(method, prompt, 24)[0] == decode(exact, prompt, 24)[0], "at temperature 0 the rule is exact"
    rounds = decode(method, prompt, 40, RAW)[1]
    text, rescued = [*prompt, *rounds[0].tokens], 0
    for round_ in rounds[1:-1]:
        for place, token in enumerate(round_.tokens):
            p = oracle.next_logits(models.models["target"], text).double().softmax(-1)
            least = min(0.05, 0.2 * math.exp(float((p * p.log()).sum())))
            assert int(p.argmax()) == token if place == len(round_.tokens) - 1 else p[token] > least
            text.append(token)
        rescued += round_.rescued
    assert rescued


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference is slow")
@pytest.mark.parametrize("architecture", ("llama", "gemma2"))
def test_rounds_equal_a_decoder_without_cache(architecture):
    """Every token of a path is typical after the text so far; then the argmax follows; features are read in step."""
    target, head = pair(architecture)[0], trained(architecture, 12)
    changes = {"total_tokens": 16, "top_k": 4, "depth": 3, "epsilon": 0.05, "delta": 0.2}
    chosen = config.validated(Settings, {**SHIPPED, **changes}, "eagle3-typical")
    session = Session(head, "draft", vocabulary=head.config.vocab_size)
    drafter = EagleDrafter(head, session, layers_read(target), 16, 4, 3)
    method = Eagle3(Session(target, "target"), drafter, {}, chosen.typical())
    prompt, _ = lively_prompt(architecture, 12, 30)
    _, rounds = decode(method, prompt, 24, RAW)
    text, rescued = [*prompt, *rounds[0].tokens], 0
    for round_ in rounds[1:-1]:
        for token in round_.tokens[:-1]:
            p = oracle.next_logits(target, text).double().softmax(-1)
            assert p[token] > min(0.05, 0.2 * math.exp(float((p * p.log()).sum())))
            text.append(token)
        assert round_.tokens[-1] == int(oracle.next_logits(target, text).argmax())
        text.append(round_.tokens[-1])
        rescued += len(round_.verdict.rescued)
    assert rescued > 3


def test_what_ships_and_what_is_refused(pocket):
    method = build(pocket, "eagle3-typical")
    assert not method.lossless and method.reach == 60 and set(method.inputs()) == set(build(pocket, "eagle3").inputs())
    for name in ("epsilon", "delta"):
        with one_line_error(f"eagle3-typical: {name}"):
            build(pocket, "eagle3-typical", **{name: 0})
