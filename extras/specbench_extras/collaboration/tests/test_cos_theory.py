"""CoS's formulas by hand, by a simulation of Algorithm 2 and by a solved Markov chain; the table from made records."""

import json
import math

import numpy as np
import pytest
from screens import call, rendered
from synthetic import SINGLE, Rows, change_manifest, rounds

from specbench.results import records
from specbench_extras.collaboration import analysis as cos_theory
from specbench_extras.collaboration.analysis import (
    alternate_factor,
    collaboration,
    expected_factor,
    leading,
    lower_bound,
    naive_factor,
    verdict,
)
from specbench_extras.collaboration.view import sentences, view

NAN = math.nan
R, A, S, U, C = range(len(records.DECISIONS))  # rejected, accepted, rescued, unread, cut
ALPHAS, COSTS = (0.0, 0.3, 0.8, 1.0), (0.05, 0.5, 1.0, 4.0)


def test_formulas_by_hand():
    """α = 1/2, c = 1/2, γ = 2: 3/2 tokens a round of 1 + 2c = 2; a bonus from p (γp = 1) is there half of the time."""
    assert leading(0.5, 3) == 1.75
    assert naive_factor(0.5, 0.5, 2) == pytest.approx(1.5 * 1.5 / 2)
    assert alternate_factor(0.5, 0.5, 2, 1) == pytest.approx(1.5 * 1.5 / (2 - 0.25))
    # One round of q in 1, with 1/4 chance p's token behind it (1 token, a forward of q), which passes half of the time.
    visits = 0.25 / (1 - 0.25 * 0.5)
    tokens, time = 1.5 * (1 + 0.5 * visits) + visits, 2 + 0.5 * visits + 0.5 * visits * 1.5
    assert expected_factor(0.5, 0.5, 0.5, 2, 1) == pytest.approx(tokens / time * 1.5)


@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_formulas_are_the_papers(gamma):
    """The geometric sums as printed, and their limit."""
    for c in COSTS:
        for a in (0.0, 0.3, 0.8, 1 - 1e-9):
            as_printed = (1 - a**gamma) * (1 + c) / ((1 - a) * (1 + c * gamma))
            assert naive_factor(a, c, gamma) == pytest.approx(as_printed, rel=1e-6)
            as_printed = (1 - a**gamma) * (1 + c) / ((1 - a) * (1 + c * gamma - a**3 * c))
            assert alternate_factor(a, c, gamma, 3) == pytest.approx(as_printed, rel=1e-6)
        assert naive_factor(1, c, gamma) == gamma * (1 + c) / (1 + c * gamma)
        assert alternate_factor(1, c, gamma, 3) == gamma * (1 + c) / (1 + c * gamma - c)


def test_corollaries_on_a_grid():
    """3.7: γ = 1 is never slower. 3.4: γ = 2 is faster than standard just where α > c/(1 + c)."""
    for c in COSTS:
        for a in ALPHAS:
            assert alternate_factor(a, c, 1, 1) >= 1
            assert naive_factor(a, c, 1) == pytest.approx(1)
            for b in ALPHAS:
                assert expected_factor(a, b, c, 1, 1) > 1 if a else expected_factor(a, b, c, 1, 1) == 1
        edge = c / (1 + c)
        assert naive_factor(edge + 0.01, c, 2) > 1 > naive_factor(edge - 0.01, c, 2)
        assert naive_factor(edge, c, 2) == pytest.approx(1)


def test_where_the_papers_formula_leaves_the_chain():
    """Equal for γ = 1 and c = 1; where everything passes, a token a forward is twice as fast at any c, not 1 + c."""
    for a in ALPHAS:
        assert alternate_factor(a, 1, 1, 1) == pytest.approx(expected_factor(a, a, 1, 1, 1))
    for c in COSTS:
        assert expected_factor(1, 1, c, 1, 1) == pytest.approx(2)
        assert alternate_factor(1, c, 1, 1) == pytest.approx(1 + c)


def simulated(alpha_q, alpha_p, c, gamma_q, gamma_p, tokens, rng):
    """Algorithm 2 for two models on coin flips: pending tokens by proposer, |C_i|, and the price of every forward."""
    alphas, prices, gammas = (alpha_q, alpha_p), (c, 1.0), (gamma_q, gamma_p)
    pending, cached, done, spent = [], [0, 0], 0, 0.0
    while done < tokens:
        if not pending:
            pending, cached, spent = [0] * gamma_q, [gamma_q, 0], spent + c * gamma_q
            continue
        at = cached.index(min(cached))
        spent += prices[at]
        pending.append(at)
        cached[at] = len(pending)
        while min(cached) > 0:
            done += 1
            if rng.random() >= alphas[pending[0]]:
                pending, cached = [], [0, 0]
                break
            pending, cached = pending[1:], [one - 1 for one in cached]
        else:
            spent += prices[at] * (gammas[at] - 1)
            pending += [at] * (gammas[at] - 1)
            cached[at] += gammas[at] - 1
    return done * (1 + c) / spent


CASES = [(0.7, 0.7, 0.5, 1, 1), (0.9, 0.4, 0.2, 5, 1), (0.3, 0.8, 2.0, 2, 3), (0.95, 0.9, 0.1, 4, 2), (1, 1, 0.3, 3, 2)]


@pytest.mark.parametrize("case", CASES)
def test_chain_is_what_a_simulation_gives(case):
    rows = simulated(*case, tokens=200_000, rng=np.random.default_rng(0))
    assert expected_factor(*case) == pytest.approx(rows, rel=0.006)


@pytest.mark.parametrize("case", CASES[:-1])
def test_chain_is_what_its_stationary_distribution_gives(case):
    alpha_q, alpha_p, c, gamma_q, gamma_p = case
    a, b = alpha_q**gamma_q, alpha_p**gamma_p
    moves = np.array([[1 - a, a, 0], [1 - b, 0, b], [1 - a, a, 0]])  # afresh, p's turn, q's turn behind p's
    share = np.linalg.lstsq(np.vstack([moves.T - np.eye(3), np.ones(3)]), np.array([0, 0, 0, 1]), rcond=None)[0]
    n_q, n_p = ((1 - x**n) / (1 - x) for x, n in ((alpha_q, gamma_q), (alpha_p, gamma_p)))
    time = share @ [1 + c * gamma_q, c + gamma_p - 1, 1 + c * (gamma_q - 1)]
    assert expected_factor(*case) == pytest.approx((1 + c) * (share @ [n_q, n_p, n_q]) / time)


def test_naive_is_what_a_simulation_gives():
    rng = np.random.default_rng(1)
    passed = np.minimum(rng.geometric(1 - 0.8, 100_000) - 1, 4)
    assert naive_factor(0.8, 0.3, 4) == pytest.approx(np.minimum(passed + 1, 4).mean() * 1.3 / 2.2, rel=0.01)


def test_bound_holds_for_any_models_and_is_reached():
    """Random distributions of three models; two that share no token meet the bound."""
    rng = np.random.default_rng(2)
    weights = (0.2, 0.5, 0.3)
    for _ in range(200):
        models = rng.dirichlet(np.full(9, 0.2), 3)
        r = weights @ models
        for at, q in enumerate(models):
            assert np.minimum(q, r).sum() >= lower_bound(weights, at) - 1e-12
    q, p = np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.1, 0.9])
    r = 0.3 * q + 0.7 * p
    assert np.minimum(q, r).sum() == pytest.approx(lower_bound((0.3, 0.7), 0))
    assert np.minimum(p, r).sum() == pytest.approx(lower_bound((0.3, 0.7), 1))


def test_verdicts():
    assert [verdict(*ends) for ends in ((1, 1.2), (0.9, 1), (0.8, 0.99), (NAN, NAN))] == [
        "holds",
        "undecided",
        "fails",
        "undecided",
    ]


SHARED = {"combine": "weighted", "weights": None}
PAIR = {
    "name": "duo",
    "description": "",
    "target": {"model": "bundled:target"},
    "draft": {"model": "bundled:draft"},
}


def judged(row, *each, prices=(0.1, 0.05), forwards=(1, 1)):
    """Rounds of one sample, each of decisions, proposers and overlaps; every one ends in what its decisions say."""
    parsed = rounds(row, *[(len(one[0]), one[0].count(A)) for one in each], seconds=prices)
    for one, (decisions, proposers, overlaps) in zip(parsed[1:], each, strict=True):
        one |= {"decisions": decisions, "proposers": proposers, "overlaps": overlaps}
        one |= {"target_forwards": forwards[0], "draft_forwards": forwards[1], "draft_seconds": prices[1]}
        one["committed"] = sum(decision <= A for decision in decisions)
    return parsed


def made(folder, cos_rounds, settings=None, decode=(2.0, 1.0), documents=2, greedy=False, **plan):
    """A run of `ensemble` (four forwards of each model: 0.1 s of the target, 0.025 s of the draft) and of methods."""
    rows = Rows()
    settings = {name: SHARED | {"gamma": 1} | (settings or {}).get(name, {}) for name in cos_rounds}
    for doc in range(documents):
        for one in rows.add("ensemble", doc, decode[0], SINGLE)[1:]:
            one |= {"draft_forwards": 1, "draft_seconds": 0.025}
        for name, each in cos_rounds.items():
            rows.add(name, doc, decode[1], lambda row, each=each: judged(row, *each))
    plan = {"baseline": "ensemble", "pair": PAIR, "temperature": 0.0 if greedy else 1.0} | plan
    return rows.run(folder, settings={"ensemble": SHARED, **settings}, **plan)


# Four tokens are judged a text: draft's .75 (accepted), target's .5 (rejected), draft's .625 and .875 (accepted).
ROUNDS = [([A], [0], [0.75]), ([R, U], [1, 0], [0.5, 0.25]), ([A, U], [0, 1], [0.625, NAN]), ([A], [0], [0.875])]


def only(table, **values):
    for name, value in values.items():
        table = table[table[name] == value]
    (row,) = table.to_dict("records")
    return row


def test_figures_by_hand(tmp_path):
    """c = 0.025/0.1. α of the draft's tokens 3/4, of the target's 1/2, of all 11/16; 4 tokens in 2 s and in 1 s."""
    analysis = collaboration(made(tmp_path / "run", {"cos": ROUNDS}, documents=3))
    assert not analysis.greedy
    of_all, of_draft, of_target = (only(analysis.acceptance, proposer=one) for one in ("all", "draft", "target"))
    assert [one["tokens"] for one in (of_all, of_draft, of_target)] == [12, 9, 3]
    assert [one["alpha"] for one in (of_all, of_draft, of_target)] == pytest.approx([11 / 16, 3 / 4, 1 / 2])
    assert [one["accepted"] for one in (of_all, of_draft, of_target)] == pytest.approx([3 / 4, 1, 0])
    assert [one["positions"] for one in (of_all, of_draft, of_target)] == [15, 12, 3]
    assert [one["lowest"] for one in (of_all, of_draft, of_target)] == [0.25, 0.25, 0.5]
    assert [one["bound"] for one in (of_all, of_draft, of_target)] == [0.5] * 3
    assert [one["below"] for one in (of_all, of_draft, of_target)] == [3, 3, 0]
    row = only(analysis.speed, method="cos")
    assert (row["proposer"], row["gamma"], row["theorem"], row["c_of"]) == ("draft", "1,1", "3.6", "ensemble")
    assert row["c"] == pytest.approx(0.25)
    assert row["predicted"] == pytest.approx(1.25 / (1.25 - 11 / 16 * 0.25))
    chain = 1.25 * (1 + 0.75) / (1.25 + 0.75 * 0.25 - 0.75 * 0.5 * 0.25)
    assert row["chain"] == pytest.approx(chain)
    assert (row["speedup"], row["baseline"], row["corollary"]) == (pytest.approx(2), "ensemble", "holds")
    assert row["over_chain"] == pytest.approx(2 / chain)
    assert "FAILS at 3 of 15 positions" in next(sentences(analysis))


def test_rounding_is_no_violation(tmp_path):
    tight = [([A, A], [0, 0], [0.5 - 5e-6, 0.5 - 5e-5])]
    analysis = collaboration(made(tmp_path / "run", {"cos": tight}))
    assert only(analysis.acceptance, proposer="all")["below"] == 2  # the second one, in each of two texts


def test_weights_lengths_and_proposers(tmp_path):
    """The target proposes first: c is its price over the draft's, and its weight the bound of its tokens."""
    swapped = [(d, [1 - one for one in p], o) for d, p, o in ROUNDS]
    settings = {"cos": {"weights": 0.2, "gamma": [1, 5]}, "cos-naive": {"weights": [0.2, 0.8], "gamma": 3}}
    settings["cos-sd"] = {"combine": "contrastive", "gamma": 3}
    run = made(tmp_path / "run", dict.fromkeys(settings, swapped), settings)
    analysis = collaboration(run)
    bounds = {(row.method, row.proposer): row.bound for row in analysis.acceptance.itertuples()}
    assert bounds["cos", "draft"] == 0.2 and bounds["cos", "target"] == pytest.approx(0.8)
    assert bounds["cos-naive", "target"] == 0.8 and math.isnan(bounds["cos-sd", "target"])
    assert math.isnan(bounds["cos", "all"])  # the proposers have bounds of their own
    assert only(analysis.acceptance, method="cos", proposer="target")["below"] == 2 * 3  # .75, .625 and .25
    assert only(analysis.acceptance, method="cos", proposer="all")["below"] == 2 * 3
    cos, naive, sd = (only(analysis.speed, method=name) for name in settings)
    assert (cos["proposer"], cos["gamma"], cos["c"]) == ("target", "1,5", pytest.approx(4))
    assert cos["predicted"] == pytest.approx(alternate_factor(11 / 16, 4, 5, 1))
    assert cos["chain"] == pytest.approx(expected_factor(0.75, 0.5, 4, 5, 1))
    assert (naive["theorem"], naive["gamma"]) == ("3.1", "3")
    assert naive["predicted"] == naive["chain"] == pytest.approx(naive_factor(11 / 16, 4, 3))
    assert sd["speedup"] == pytest.approx(2) and math.isnan(sd["predicted"]) and math.isnan(sd["chain"])
    assert not any(isinstance(one["corollary"], str) for one in (cos, naive, sd))


def test_one_gamma_is_the_default_proposers_and_null_the_pairs(tmp_path):
    pair = PAIR | {"members": [PAIR["draft"] | {"gamma": 4}, PAIR["target"]]}
    run = made(tmp_path / "run", {"cos": ROUNDS}, {"cos": {"gamma": 5}}, pair=pair)
    (spec,) = (method for method in run.plan.methods if method.name == "cos")
    assert cos_theory.proposal_lengths(run, spec, 0) == (5, 1)
    assert cos_theory.proposal_lengths(run, spec, 1) == (1, 5)
    run = made(tmp_path / "null", {"cos": ROUNDS}, {"cos": {"gamma": None}}, pair=pair)
    assert only(collaboration(run).speed, method="cos")["gamma"] == "4,1"
    run = made(tmp_path / "bare", {"cos": ROUNDS}, {"cos": {"gamma": None}})
    assert only(collaboration(run).speed, method="cos")["gamma"] == "1,1"


def test_greedy_runs_go_by_accepted_tokens(tmp_path):
    analysis = collaboration(made(tmp_path / "run", {"cos": [(d, p, None) for d, p, _ in ROUNDS]}, greedy=True))
    assert analysis.greedy
    row = only(analysis.acceptance, proposer="all")
    assert (row["alpha"], row["positions"], row["below"]) == (0.75, 0, 0) and math.isnan(row["lowest"])
    assert only(analysis.speed, method="cos")["predicted"] == pytest.approx(1.25 / (1.25 - 0.75 * 0.25))


def test_three_models_have_acceptance_but_no_formula(tmp_path):
    pair = PAIR | {"members": [PAIR["draft"], PAIR["target"], {"role": "math", "model": "bundled:math"}]}
    each = [([A, R], [0, 2], [0.75, 0.25]), ([A], [1], [0.5])]
    run = made(tmp_path / "run", {"cos": each}, pair=pair)
    analysis = collaboration(run)
    assert only(analysis.acceptance, proposer="math")["alpha"] == 0.25
    assert only(analysis.acceptance, proposer="math")["bound"] == pytest.approx(1 / 3)
    assert only(analysis.acceptance, proposer="math")["below"] == 2
    row = only(analysis.speed, method="cos")
    assert row["gamma"] == "1,1,1" and row["speedup"] == pytest.approx((2 / 4) / (1 / 3))  # seconds a token
    assert all(one is None or one != one for one in (row["predicted"], row["chain"], row["c"], row["corollary"]))


def test_seconds_of_further_members(tmp_path):
    pair = PAIR | {"members": [PAIR["draft"], PAIR["target"], {"role": "math", "model": "bundled:math"}]}
    rows = Rows()
    rows.add("ensemble", 0, 1.0, [(0, 0), (0, 0)])
    rows.add("cos", 0, 1.0, lambda row: judged(row, *ROUNDS))
    for round_ in rows.rounds:
        round_ |= {"member_forwards": [2], "member_seconds": [0.5]}
    run = rows.run(tmp_path / "run", baseline="ensemble", pair=pair)
    assert cos_theory.forward_seconds(run).loc[("one", "ensemble"), "math"] == 0.25


def test_without_a_standard_collaboration(tmp_path):
    """Prices are then the method's own (0.1 and 0.05 s a forward), and no speedup is told."""
    rows = Rows()
    for doc in range(2):
        rows.add("plain", doc, 1.0, [(0, 0)])
        rows.add("cos", doc, 1.0, lambda row: judged(row, *ROUNDS))
    settings = {"cos": SHARED | {"gamma": 1}}
    run = rows.run(tmp_path / "run", settings=settings, pair=PAIR, temperature=1.0)
    row = only(collaboration(run).speed, method="cos")
    assert (row["c"], row["c_of"]) == (pytest.approx(0.5), "cos")
    assert all(one is None or one != one for one in (row["baseline"], row["speedup"], row["corollary"]))
    assert row["predicted"] > 1


def test_printed_table_fits_80_columns(tmp_path):
    long = "cos[weights=0.3,proposer=draft]"
    analysis = collaboration(
        made(tmp_path / "run", {long: ROUNDS, "cos-naive": ROUNDS}, {"cos-naive": {"gamma": 2}}, documents=3)
    )
    lines = rendered(view(analysis)).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("cos-naive") and "2.00 [2.00, 2.00]" in line for line in lines)
    assert any("Corollary 3.7" in line and "holds" in line for line in lines)


def test_command(tmp_path):
    run = made(tmp_path / "run", {"cos": ROUNDS}, documents=3)
    facts = json.loads(call("analyze", "collaboration", run.folder, "--format", "json").stdout)
    assert facts["speed"][0]["corollary"] == "holds" and facts["acceptance"][0]["alpha"] == pytest.approx(11 / 16)
    assert 'collaboration,speed,0,gamma,"1,1"' in call("analyze", "collaboration", run.folder, "--format", "csv").stdout
    assert call("analyze", "collaboration", run.folder).exit_code == 0


def refused(*arguments):
    result = call("analyze", "collaboration", *arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    return line


def test_errors_are_one_line(tmp_path):
    run = made(tmp_path / "run", {"cos": ROUNDS})
    plain = Rows()
    plain.add("plain", 0, 1.0, [(0, 0)])
    folder = plain.run(tmp_path / "plain").folder
    assert "no method of the CoS family (cos, cos-naive, cos-sd)" in refused(folder)
    assert "not a run folder" in refused(tmp_path)
    bad = made(tmp_path / "bad", {"cos": [([A], [0], [0.5, 0.5])]})
    assert "different lengths" in refused(bad.folder)
    empty = made(tmp_path / "empty", {"cos": []})
    assert "proposed a token" in refused(empty.folder)
    (run.folder / "scores.parquet").rename(run.folder / "elsewhere")
    assert "--resume" in refused(run.folder)
    change_manifest(run.folder, schema=4)
    assert "a version without records of collaboration" in refused(run.folder)
