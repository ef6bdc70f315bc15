"""How models' views of the next token become one: by hand, against the slow implementation, and what is refused."""

import math

import naive_cos as naive
import pytest
import torch
from builders_engine import build
from collaborations import made_pair
from gates import GREEDY, decode
from refusals import one_line_error

from specbench import permissions
from specbench.config import UserError
from specbench.engine.types import Sampling
from specbench.methods.collaborative.cos.combine import contrastive, custom, realigned, weighted


def logs(*chances: float) -> torch.Tensor:
    return torch.tensor([chances], dtype=torch.float64).log()


def r(combination, *logits: torch.Tensor, sampling: Sampling) -> list[float]:
    """r of one row of each model's logits [1, V]."""
    result = combination.combined([combination.rows(row, sampling) for row in logits], sampling)
    assert result.shape == logits[0].shape
    return result[0].tolist()


def q(combination, logits: torch.Tensor, sampling: Sampling) -> list[float]:
    return combination.proposal(combination.rows(logits, sampling), sampling)[0].tolist()


# By hand --------------------------------------------------------------------------------------------------------------

FIRST, LAST = logs(0.6, 0.3, 0.1), logs(0.1, 0.3, 0.6)


def test_a_weighted_ensemble_averages_probabilities():
    assert r(weighted([0.5, 0.5]), FIRST, LAST, sampling=Sampling(1.0)) == pytest.approx([0.35, 0.3, 0.35])
    # λ is the first model's: 0.8 · 0.6 + 0.2 · 0.1.
    assert r(weighted([0.8, 0.2]), FIRST, LAST, sampling=Sampling(1.0)) == pytest.approx([0.5, 0.3, 0.2])
    third = logs(0.2, 0.2, 0.6)
    result = r(weighted([0.5, 0.3, 0.2]), FIRST, LAST, third, sampling=Sampling(1.0))
    assert result == pytest.approx([0.37, 0.28, 0.35])
    assert r(weighted([1, 0]), FIRST, LAST, sampling=Sampling(1.0)) == pytest.approx([0.6, 0.3, 0.1])


def test_a_weighted_ensemble_tempers_and_cuts_each_model_by_itself():
    # T = 0.5 squares: 36, 9, 1 of 46 and 1, 9, 36.
    result = r(weighted([0.75, 0.25]), FIRST, LAST, sampling=Sampling(0.5))
    assert result == pytest.approx([(0.75 * 36 + 0.25) / 46, 9 / 46, (0.75 + 0.25 * 36) / 46])
    # Top-p 0.8 leaves each its best two, 2/3 and 1/3; the mixture's own nucleus would hold 0.35, 0.35 and 0.3.
    result = r(weighted([0.5, 0.5]), FIRST, LAST, sampling=Sampling(1.0, top_p=0.8))
    assert result == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    # Top-p 0.6 and top-k 1 leave each its best one; of the mixture they would leave other things.
    for sampling in (Sampling(1.0, top_p=0.5), Sampling(1.0, top_k=1)):
        assert r(weighted([0.3, 0.7]), FIRST, LAST, sampling=sampling) == pytest.approx([0.3, 0, 0.7])


def test_contrastive_decoding_combines_raw_logits():
    # l_p - μ l_q with μ = 0.5: 0.1 / √0.6, 0.3 / √0.3, 0.6 / √0.1, to be normalised.
    raw = [0.1 / math.sqrt(0.6), 0.3 / math.sqrt(0.3), 0.6 / math.sqrt(0.1)]
    result = r(contrastive(0.5), FIRST, LAST, sampling=Sampling(1.0))
    assert result == pytest.approx([x / sum(raw) for x in raw])
    # Temperature comes after: of the combined logits, all squared at T = 0.5.
    result = r(contrastive(0.5), FIRST, LAST, sampling=Sampling(0.5))
    assert result == pytest.approx([x * x / sum(y * y for y in raw) for x in raw])
    assert r(contrastive(0.0), FIRST, LAST, sampling=Sampling(1.0)) == pytest.approx([0.1, 0.3, 0.6])


def test_contrastive_decoding_cuts_the_combination():
    """Top-p 0.8 of r = 0.048, 0.212, 0.740 keeps two; the models' own nuclei would have left -inf - -inf."""
    raw = [0.3 / math.sqrt(0.3), 0.6 / math.sqrt(0.1)]
    result = r(contrastive(0.5), FIRST, LAST, sampling=Sampling(1.0, top_p=0.8))
    assert result == pytest.approx([0, raw[0] / sum(raw), raw[1] / sum(raw)])
    # What neither model's own top two hold may still win: logits 2, 1.9, 0 less half of 2, 0, -3.
    amateur, expert = torch.tensor([[2.0, 0, -3.0]]), torch.tensor([[2.0, 1.9, 0.9]])
    assert r(contrastive(0.5), amateur, expert, sampling=Sampling(1.0, top_k=1)) == [0, 0, 1], "2.4 against 1 and 1.9"


def test_realignment_mixes_raw_logits():
    # λ = 0.75 of the last: 0.1^0.75 · 0.6^0.25 and so on.
    raw = [0.1**0.75 * 0.6**0.25, 0.3, 0.6**0.75 * 0.1**0.25]
    result = r(realigned(0.75), FIRST, LAST, sampling=Sampling(1.0))
    assert result == pytest.approx([x / sum(raw) for x in raw])
    assert r(realigned(1.0), FIRST, LAST, sampling=Sampling(1.0)) == pytest.approx([0.1, 0.3, 0.6])
    # Extrapolation is what the realignment strength is for: beyond 1 it leaves the reference.
    raw = [0.1**2 / 0.6, 0.3, 0.6**2 / 0.1]
    result = r(realigned(2.0), FIRST, LAST, sampling=Sampling(1.0))
    assert result == pytest.approx([x / sum(raw) for x in raw])


def test_greedy_is_the_best_of_the_mixture():
    """T = 0 of a weighted ensemble: at temperature 1, not a vote of one-hot rows, nor of logits."""
    one, other = logs(0.5, 0.4, 0.1), logs(0.1, 0.4, 0.5)
    scores = weighted([0.6, 0.4]).combined([weighted([0.6, 0.4]).rows(x, GREEDY) for x in (one, other)], GREEDY)
    assert scores.argmax(-1).tolist() == [1], "0.34, 0.4 and 0.26; a vote would give 0"
    # Logits shifted as a whole are the same model.
    shifted = weighted([0.6, 0.4]).combined([weighted([0.6, 0.4]).rows(x, GREEDY) for x in (one + 50, other)], GREEDY)
    assert shifted.argmax(-1).tolist() == [1]
    # top-p and top-k do not matter to the best token.
    cut = Sampling(0.0, top_k=1, top_p=0.1)
    assert weighted([0.5, 0.5]).combined([weighted([0.5, 0.5]).rows(x, cut) for x in (one, other)], cut).argmax() == 1


def test_what_a_model_proposes_from():
    """q is the proposer's own tempered and cut distribution, for whatever is combined."""
    for combination in (weighted([0.5, 0.5]), contrastive(0.3), realigned(0.4)):
        assert q(combination, FIRST, Sampling(1.0)) == pytest.approx([0.6, 0.3, 0.1])
        assert q(combination, FIRST, Sampling(0.5, top_p=0.9)) == pytest.approx([0.8, 0.2, 0])


# Against the slow implementation --------------------------------------------------------------------------------------

RANDOM = [
    ([0.5, 0.5], weighted, lambda a: naive.weighted(*a)),
    ([0.1, 0.9], weighted, lambda a: naive.weighted(*a)),
    ([0.5, 0.3, 0.2], weighted, lambda a: naive.weighted(*a)),
    ([0.1, 0.2, 0.3, 0.4], weighted, lambda a: naive.weighted(*a)),
    (0.1, contrastive, naive.contrastive),
    (0.9, contrastive, naive.contrastive),
    (0.5, realigned, naive.realigned),
    (1.7, realigned, naive.realigned),
]


@pytest.mark.parametrize(("value", "fast", "slow"), RANDOM, ids=lambda x: str(x) if not callable(x) else "")
def test_rows_of_random_logits_equal_the_reference(value, fast, slow):
    """Several rows at a time, which may not see each other; rows that were given are not changed."""
    count = len(value) if isinstance(value, list) else 2
    combination, reference = fast(value), slow(value)
    rng = torch.Generator().manual_seed(count)
    logits = [3 * torch.randn(20, 12, dtype=torch.float64, generator=rng) for _ in range(count)]
    for sampling in (GREEDY, Sampling(1.0), Sampling(0.7), Sampling(1.3, top_k=4), Sampling(0.8, top_p=0.8)):
        rows = [combination.rows(row, sampling) for row in logits]
        kept = [row.clone() for row in rows]
        result = combination.combined(rows, sampling)
        sampler = naive.Sampler(sampling.temperature, sampling.top_k, sampling.top_p)
        expected = torch.stack([reference([row[k] for row in logits], sampler) for k in range(20)])
        if sampling.greedy:
            assert result.argmax(-1).tolist() == expected.argmax(-1).tolist()
        else:
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
            torch.testing.assert_close(result.sum(-1), torch.ones(20, dtype=torch.float64))
        assert all(torch.equal(a, b) for a, b in zip(rows, kept, strict=True)), "they serve again"


def test_half_precision_is_widened():
    """A mixture of bfloat16 probabilities would not sum to 1 within 1 %."""
    rows = [3 * torch.randn(50, 200, generator=torch.Generator().manual_seed(s)) for s in (1, 2)]
    rows = [row.bfloat16() for row in rows]
    for combination in (weighted([0.3, 0.7]), contrastive(0.1), realigned(0.5)):
        result = combination.combined([combination.rows(row, Sampling(1.0)) for row in rows], Sampling(1.0))
        same = combination.combined([combination.rows(row.double(), Sampling(1.0)) for row in rows], Sampling(1.0))
        torch.testing.assert_close(result.double(), same, rtol=1e-4, atol=1e-6)


# Settings -------------------------------------------------------------------------------------------------------------

PAIR = made_pair([naive.successor(8, {}), naive.successor(8, {3: 0})])
TRIO = made_pair([naive.successor(8, {}), naive.successor(8, {3: 0}), naive.successor(8, {3: 1})])


def function(tmp_path, monkeypatch, body: str) -> str:
    """The name of a function of one's own that this test may use, in a module that no other test has imported."""
    name = f"own_{abs(hash((str(tmp_path), body)))}"
    (tmp_path / f"{name}.py").write_text(f"import torch\n\n\ndef combine(rows):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(permissions, "check_entry_point", lambda text, what: None)
    return f"{name}:combine"


def test_weights_are_those_of_the_members_in_order():
    for pair, weights, follows in (
        (PAIR, 0.7, 4),
        (PAIR, 0.3, 0),
        (PAIR, [0.7, 0.3], 4),
        (PAIR, [0.3, 0.7], 0),
        (TRIO, [0.5, 0.3, 0.2], 4),
        (TRIO, [0.2, 0.5, 0.3], 0),
        (TRIO, [0.2, 0.3, 0.5], 1),
    ):
        assert decode(build(pair, "ensemble", weights=weights), [3], 1)[0] == [follows], weights


def test_contrastive_decoding_takes_the_last_model_for_the_expert():
    assert decode(build(PAIR, "ensemble", combine="contrastive", mu=0.1), [3], 1)[0] == [0]
    assert decode(build(PAIR, "ensemble", combine="realigned", realign=0.9), [3], 1)[0] == [0]
    assert decode(build(PAIR, "ensemble", combine="realigned", realign=0.1), [3], 1)[0] == [4]


@pytest.mark.parametrize("level", ("probabilities", "logits"))
def test_a_function_of_ones_own(tmp_path, monkeypatch, level):
    """The geometric mean of two models, over either level: the same as a realignment by half."""
    body = {
        "logits": "return (rows[0] + rows[1]) / 2",
        "probabilities": "return torch.softmax((rows[0].log() + rows[1].log()) / 2, -1)",
    }[level]
    name = function(tmp_path, monkeypatch, body)
    method = build(PAIR, "ensemble", combine=name, level=level)
    assert list(method.inputs()) == ["combine"], "its file is among the run's inputs"
    expected = r(realigned(0.5), FIRST, LAST, sampling=Sampling(1.0))
    assert r(method.combination, FIRST, LAST, sampling=Sampling(1.0)) == pytest.approx(expected)
    tempered = r(method.combination, FIRST, LAST, sampling=Sampling(0.5))
    assert tempered == pytest.approx(r(realigned(0.5), FIRST, LAST, sampling=Sampling(0.5)))


WRONG = [
    (PAIR, {"weights": [0.5, 0.6]}, "sum to 1"),
    (PAIR, {"weights": [1.2, -0.2]}, "0 or more"),
    (PAIR, {"weights": 1.5}, "between 0 and 1"),
    (PAIR, {"weights": -0.1}, "between 0 and 1"),
    (PAIR, {"weights": float("nan")}, "weights"),
    (PAIR, {"weights": [float("nan"), 0.5]}, "weights"),
    (PAIR, {"weights": [0.5, 0.3, 0.2]}, "3 weights for 2 models"),
    (PAIR, {"weights": []}, "0 weights for 2 models"),
    (TRIO, {"weights": 0.5}, "a number is for two models"),
    (PAIR, {"weights": "0.5,0.5"}, "in brackets"),
    (TRIO, {"weights": [0.5, 0.5]}, "2 weights for 3 models"),
    (PAIR, {"combine": "contrastive", "mu": 1.0}, "mu"),
    (PAIR, {"combine": "contrastive", "mu": -0.1}, "mu"),
    (PAIR, {"combine": "contrastive", "mu": float("nan")}, "mu"),
    (PAIR, {"combine": "realigned", "realign": float("nan")}, "realign"),
    (TRIO, {"combine": "contrastive"}, "two models"),
    (TRIO, {"combine": "realigned"}, "two models"),
    (PAIR, {"combine": "average"}, "module:function"),
    (PAIR, {"combine": ""}, "module:function"),
    (PAIR, {"combine": "math:"}, "module:function"),
    (PAIR, {"combine": "no_such_module:f"}, "no_such_module"),
    (PAIR, {"combine": "math:no_such_function"}, "no_such_function"),
    (PAIR, {"combine": "math:pi"}, "not a function"),
    (PAIR, {"level": "words"}, "level"),
]


@pytest.mark.parametrize(("pair", "settings", "message"), WRONG, ids=[str(settings) for _, settings, _ in WRONG])
def test_wrong_settings_are_one_line(pair, settings, message):
    for name in ("ensemble", "cos"):
        allowed = permissions.permitted(entry_points=[settings.get("combine", "")])
        with one_line_error(match=message), allowed:
            build(pair, name, **settings)


OWN = [
    ("return rows[0] - 0.5", "negative"),
    ("return (rows[0] + rows[1])", "sum to 2"),
    ("return rows[0][:1]", "returned"),
    ("return rows[0][..., :-1]", "returned"),
    ("return 1", "returned"),
    ("return None", "returned"),
    ("return rows[0] / 0 * 0", "NaN"),
    ("return (rows[0] == rows[0].max(-1, keepdim=True).values).long()", "floating point"),
    (
        "return rows[0] - (rows[0] > 0.9) * 2 + (rows[0] > 0.9).any(-1, keepdim=True) * 2 / rows[0].shape[-1]",
        "negative",
    ),
    ("return rows[2]", "failed"),
    (
        "return rows[0].mul_(0.5).add_(rows[1], alpha=0.5)",
        "place|change",
    ),  # the rows may be what a token was drawn from
    ("raise ValueError('two\\nlines')", "failed"),
]


@pytest.mark.parametrize(("body", "message"), OWN)
def test_a_wrong_function_of_ones_own_is_one_line(tmp_path, monkeypatch, body, message):
    name = function(tmp_path, monkeypatch, body)
    with one_line_error(name, match=message):
        build(PAIR, "ensemble", combine=name)


def test_a_function_over_logits_need_not_be_a_distribution(tmp_path, monkeypatch):
    name = function(tmp_path, monkeypatch, "return 3 * rows[1] - rows[0]")
    with pytest.raises(UserError, match="level=logits"):
        build(PAIR, "ensemble", combine=function(tmp_path, monkeypatch, "return rows[0] + rows[1] - 0"))
    build(PAIR, "ensemble", combine=name, level="logits")


PROPOSING = [
    ("cos", {"proposer": "poet"}, "draft, target"),
    ("cos", {"gamma": [1, 1, 1]}, "3 for 2 models"),
    ("cos", {"gamma": [1, 0]}, "at least one"),
    ("cos", {"gamma": 0}, "at least one"),
    ("cos-naive", {"gamma": 0}, "gamma"),
    ("cos-sd", {"gamma": 0}, "gamma"),
    ("cos-sd", {"proposer": "poet"}, "draft, target"),
    ("member", {"model": "poet"}, "poet"),
]


@pytest.mark.parametrize(("name", "settings", "message"), PROPOSING, ids=str)
def test_wrong_proposers_and_lengths_are_one_line(name, settings, message):
    with one_line_error(match=message):
        build(PAIR, name, **settings)


def test_one_model_does_not_collaborate():
    alone = made_pair([naive.successor(8, {})])
    for name in ("ensemble", "cos", "cos-sd", "cos-naive", "ensemble-parallel"):
        with pytest.raises(UserError, match="one model"):
            build(alone, name)


def test_the_smallest_model_proposes_first_and_of_equals_the_first():
    small, large = naive.successor(8, {}), naive.successor(8, {})
    assert build(made_pair([large, small]), "cos").order == [0, 1]
    small.num_parameters = lambda: 10
    assert build(made_pair([large, small]), "cos").order == [1, 0]
    assert build(made_pair([large, small]), "cos", proposer="draft").order == [0, 1]
    assert build(made_pair([large, large, small]), "cos").order == [2, 0, 1]
    assert build(made_pair([large, small]), "cos", gamma=3).gammas == [1, 3], "of the proposer, the others 1"
    assert build(made_pair([large, small]), "cos", gamma=[4, 2]).gammas == [4, 2], "in the members' order"


def test_probabilities_of_ones_own_function_are_made_to_sum_to_one():
    """At logits they are scores, which the softmax of the usual path makes probabilities."""
    p = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    twice = custom("twice", "", "probabilities", lambda rows: rows[0] + rows[1])
    torch.testing.assert_close(twice.combined([p, p], Sampling(1.0)), p)
    scores = custom("twice", "", "logits", lambda rows: rows[0] + rows[1])
    torch.testing.assert_close(scores.combined([p.log(), p.log()], Sampling(1.0)), p**2 / (p**2).sum())
