"""What CoS's paper (arXiv 2502.01662) predicts for speed and acceptance, and the same measured in a run's records.

Notation: q is the default proposer, p the other model; α is the probability that a proposed token is accepted, γ the
number of tokens a model proposes at a time, c the time of a forward of q over that of p. Factors are speedups over
standard collaborative decoding, where every token costs a forward of each model, 1 + c. All of them assume one α for
every token of a proposer, independent of the token before it, and one price for a forward of any width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from specbench.analysis import compare, pooled
from specbench.config import MethodSpec, UserError
from specbench.methods import settings_of
from specbench.methods.collaborative.cos.combining import weights_of
from specbench.methods.collaborative.cos.cos import gammas_of
from specbench.results import records
from specbench.results.records import flatten
from specbench.results.stored import StoredRun

COS = ("cos", "cos-naive", "cos-sd")  # implementations that propose tokens to a combined distribution
STANDARD = "ensemble"
RECORDED = 5  # the version of records that has overlaps and proposers
ROUNDING = 1e-5  # of sums of float32 probabilities over a vocabulary
ALL = "all"  # the tokens of all proposers
REJECTED, ACCEPTED = (records.DECISIONS.index(name) for name in ("rejected", "accepted"))
FORWARDS = ("target_forwards", "draft_forwards", "target_seconds", "draft_seconds")
MADE_BY = "`specbench run --method cos --pair pocket --suite pocket --temperature 1` makes one"


def leading(alpha: float, gamma: int) -> float:
    """Expected tokens of γ proposals and a correction: 1 + α + … + α^(γ−1) = (1 − α^γ)/(1 − α), or γ if α = 1."""
    return float(sum(alpha**i for i in range(gamma)))


def naive_factor(alpha: float, c: float, gamma: int) -> float:
    """Theorem 3.1, speculation without a bonus token: (1 − α^γ)(1 + c) / ((1 − α)(1 + cγ)).

    Rounds are renewals, so the formula is exact under its assumptions.
    """
    return leading(alpha, gamma) * (1 + c) / (1 + c * gamma)


def alternate_factor(alpha: float, c: float, gamma_q: int, gamma_p: int) -> float:
    """Theorem 3.6, the alternate proposal framework: (1 − α^γq)(1 + c) / ((1 − α)(1 + cγq − α^γp c)), as printed.

    Its proof considers only cycles in which q proposes and p verifies, and assumes that each of them follows a cycle in
    which p proposed. It omits the tokens of p's cycles, q's forward that verifies them (and whose cost the bonus token
    covers once), and that no such cycle follows a rejection. With γ = 1 and c = 1 these cancel out. With α = 1 and
    γ = 1 the formula gives 1 + c, although one token per forward is twice as fast for any c. `expected_factor` counts
    all of this.
    """
    return leading(alpha, gamma_q) * (1 + c) / (1 + c * gamma_q - alpha**gamma_p * c)


def expected_factor(alpha_q: float, alpha_p: float, c: float, gamma_q: int, gamma_p: int) -> float:
    """Our prediction for the alternate framework: tokens over time of its Markov chain, with an α for each proposer.

    States: F, q proposes γq tokens afresh and p scores them; P, p adds γp − 1 tokens to its bonus and q scores; Q, q
    adds γq − 1 to its bonus and p scores. With a = αq^γq and b = αp^γp, F and Q lead to P with probability a, P to Q
    with probability b, and otherwise to F. From one F to the next there are v = a/(1 − ab) visits of P and bv of Q:

        tokens  N_q (1 + bv) + N_p v,  N = 1 + α + … + α^(γ−1)
        time    (1 + cγq) + v (c + γp − 1) + bv (1 + c(γq − 1))

    which the code multiplies by 1 − ab, so that it holds for α = 1 too. For γ = 1 the factor is at least 1, and equal
    to 1 only if αq = 0: Corollary 3.7 holds (the paper also allows 1 for c = 0).
    """
    a, b = alpha_q**gamma_q, alpha_p**gamma_p
    tokens = leading(alpha_q, gamma_q) + a * leading(alpha_p, gamma_p)
    time = 1 + c * gamma_q + a * (c + gamma_p - 1) - a * b * c
    return tokens * (1 + c) / time


def lower_bound(weights: Sequence[float], proposer: int) -> float:
    """Theorem 3.2 for n models: α of a weighted ensemble's proposer is at least its own weight, at every position.

    For two models it is λ if the first one proposes, and 1 − λ if the other does.
    """
    return weights[proposer]


def verdict(low: float, high: float) -> str:
    """Corollary 3.7 (two models, all γ = 1: never slower) by a speedup's interval: holds, fails or undecided."""
    if low >= 1:
        return "holds"
    return "fails" if high < 1 else "undecided"


@dataclass(frozen=True)
class Collaboration:
    """A run's methods of the CoS family compared with the paper's formulas, by task."""

    greedy: bool  # True: α is the share of accepted tokens, because there are no distributions to overlap
    # task, method, proposer (a role, or ALL), tokens (judged), alpha (mean overlap of these), accepted (share),
    # positions (with an overlap, also unread ones), lowest (overlap), bound (NaN: none, or several),
    # below (positions below their bound; NaN: there are no bounds)
    acceptance: pd.DataFrame
    # task, method, proposer (the default one), gamma (by member), c, c_of (whose forwards), theorem, predicted, chain,
    # baseline, speedup, low, high (95 %), over_predicted, over_chain, corollary
    speed: pd.DataFrame


def collaboration(run: StoredRun) -> Collaboration:
    """Measure and predict every method of the CoS family in a run.

    Raises UserError if the run has none, is unfinished, or is of a version that did not record overlaps.
    """
    if run.manifest["schema"] < RECORDED:
        raise UserError(f"{run.folder} was written by a version without records of collaboration; {MADE_BY}")
    specs = {spec.name: spec for spec in run.plan.methods if spec.method in COS}
    if not specs:
        raise UserError(f"{run.folder} has no method of the CoS family ({', '.join(COS)}); {MADE_BY}")
    # First, as this refuses unfinished runs.
    summary = compare.summary(pooled.measured([run])).set_index(["task", "method"])
    tokens, prices = drafted_tokens(run, list(specs)), forward_seconds(run)
    if tokens.empty:
        raise UserError(
            f"{run.folder}: no method of the CoS family proposed a token; run it with more --max-new-tokens"
        )
    roles, greedy = list(run.plan.pair.collaboration), run.plan.sampling.temperature == 0
    if not tokens.proposer.between(0, len(roles) - 1).all():
        raise UserError(f"{run.folder} has tokens of models that are not in its pair: damaged; this run cannot be used")
    acceptance, speed = [], []
    for task in (line.task for line in run.plan.tasks):
        for name, spec in specs.items():
            mine = tokens[(tokens.task == task) & (tokens.method == name)]
            if mine.empty:
                continue
            rows = _acceptance(mine, roles, _bounds(settings_of(spec, run.folder), roles), greedy)
            key = {"task": task, "method": name}
            acceptance += [key | row for row in rows]
            alphas = {row["proposer"]: row["alpha"] for row in rows}
            default = int(mine.proposer[mine["first"]].iloc[0])
            speed.append(key | _speed(run, spec, task, default, alphas, prices, summary))
    return Collaboration(greedy, pd.DataFrame(acceptance), pd.DataFrame(speed))


def _acceptance(
    tokens: pd.DataFrame, roles: Sequence[str], bounds: Sequence[float], greedy: bool
) -> list[dict[str, Any]]:
    """A row for all proposers of one method and task together, then one for each."""
    bound = tokens.proposer.map(dict(enumerate(bounds)))
    tokens = tokens.assign(bound=bound, below=tokens.overlap < bound - ROUNDING)
    rows = []
    for at in (None, *sorted(tokens.proposer.unique())):
        part = tokens if at is None else tokens[tokens.proposer == at]
        judged = part[part.decision <= ACCEPTED]
        accepted = float((judged.decision == ACCEPTED).mean())
        rows.append(
            {
                "proposer": ALL if at is None else roles[at],
                "tokens": len(judged),
                "alpha": accepted if greedy else float(judged.overlap.mean()),
                "accepted": accepted,
                "positions": int(part.overlap.notna().sum()),
                "lowest": float(part.overlap.min()),
                "bound": math.nan if part.bound.nunique() != 1 else float(part.bound.iloc[0]),
                "below": int(part.below.sum()) if part.bound.notna().any() else None,
            }
        )
    return rows


def _speed(
    run: StoredRun,
    spec: MethodSpec,
    task: str,
    default: int,
    alphas: dict[str, float],
    prices: pd.DataFrame,
    summary: pd.DataFrame,
) -> dict[str, Any]:
    """Predicted and measured speed of one method and task; `default` is the index of its default proposer."""
    roles, gammas = list(run.plan.pair.collaboration), proposal_lengths(run, spec, default)
    measured = summary.loc[(task, spec.name)]
    base = {method.name: method for method in run.plan.methods}.get(measured.baseline)
    row: dict[str, Any] = {"proposer": roles[default], "gamma": ",".join(map(str, gammas))}
    row |= dict.fromkeys(("c", "c_of", "theorem", "predicted", "chain", "baseline", "speedup", "low", "high"))
    if len(roles) == 2:
        other = roles[1 - default]
        row["c"], row["c_of"] = _price_ratio(prices, task, spec.name, _standard(run, base), roles[default], other)
        if spec.method == "cos-naive":
            row["theorem"] = "3.1"
            row["predicted"] = row["chain"] = naive_factor(alphas[ALL], row["c"], gammas[0])
        elif spec.method == "cos":
            lengths = gammas[default], gammas[1 - default]
            row["theorem"] = "3.6"
            row["predicted"] = alternate_factor(alphas[ALL], row["c"], *lengths)
            row["chain"] = expected_factor(alphas[roles[default]], alphas.get(other, math.nan), row["c"], *lengths)
    if base and base.method == STANDARD:
        row["baseline"] = base.name
        row["speedup"], row["low"], row["high"] = (measured[f"speedup_decode{end}"] for end in ("", "_low", "_high"))
    row |= {f"over_{name}": _quotient(row["speedup"], row[name]) for name in ("predicted", "chain")}
    guaranteed = spec.method == "cos" and len(roles) == 2 and set(gammas) == {1} and row["baseline"]
    return row | {"corollary": verdict(row["low"], row["high"]) if guaranteed else None}


def _quotient(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or denominator is None else numerator / denominator


def _standard(run: StoredRun, base: MethodSpec | None) -> str | None:
    """The method whose forwards read one token each: the baseline, or any other standard collaboration."""
    candidates = [spec for spec in (base, *run.plan.methods) if spec and spec.method == STANDARD]
    return candidates[0].name if candidates else None


def _price_ratio(
    prices: pd.DataFrame, task: str, method: str, standard: str | None, proposer: str, other: str
) -> tuple[float, str]:
    """Seconds per forward of the proposer over the other model's, and the method whose forwards were used."""
    for name in (standard, method):
        if (task, name) in prices.index:
            seconds = prices.loc[(task, name)]
            ratio = float(seconds[proposer] / seconds[other])
            if math.isfinite(ratio):
                return ratio, str(name)
    return math.nan, method


def proposal_lengths(run: StoredRun, spec: MethodSpec, default: int) -> tuple[int, ...]:
    """γ of each member, in order; for `cos-naive` and `cos-sd` only the proposer's."""
    pair, gamma = run.plan.pair, settings_of(spec, run.folder)["gamma"]
    if spec.method != "cos":
        return (int(gamma),)
    return tuple(gammas_of(gamma, list(pair.collaboration), [member.gamma for member in pair.members], default))


def _bounds(values: Mapping[str, Any], roles: Sequence[str]) -> list[float]:
    """The least possible overlap of each member's proposals; NaN if the combination is not a weighted ensemble."""
    if values.get("combine", "weighted") != "weighted":
        return [math.nan] * len(roles)
    weights = weights_of(values.get("weights"), roles)
    return [lower_bound(weights, at) for at in range(len(roles))]


def drafted_tokens(run: StoredRun, methods: Sequence[str]) -> pd.DataFrame:
    """A row for each proposed token: task, method, proposer (index), decision, overlap, and `first` (of its text).

    Raises UserError if the lists of a round differ in length.
    """
    wanted = ~pc.field("warmup") & pc.field("method").isin(methods)
    columns = ["task", "method", "round", "decisions", "proposers", "overlaps"]
    batches = run.rounds().to_batches(columns=columns, filter=wanted & pc.field("decisions").is_valid())
    parts = [_flattened(run, batch) for batch in batches if batch.num_rows]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _flattened(run: StoredRun, batch: pa.RecordBatch) -> pd.DataFrame:
    elements = flatten(run.folder, batch, ["decisions", "proposers"], "overlaps")
    row, values = elements.row, elements.values
    columns = {name: batch.column(name).to_pandas().astype("category")[row].array for name in ("task", "method")}
    first = (batch.column("round").to_numpy()[row] == 1) & (elements.position == 0)
    columns |= {"proposer": values["proposers"], "decision": values["decisions"], "overlap": values["overlaps"]}
    return pd.DataFrame(columns | {"first": first})


def forward_seconds(run: StoredRun) -> pd.DataFrame:
    """Seconds per forward after the prefill, by task and method (the index), with a column for each role."""
    further = [role for role in run.plan.pair.collaboration if role not in ("target", "draft")]
    wanted = ~pc.field("warmup") & (pc.field("round") > 0)
    lists = ["member_forwards", "member_seconds"] if further else []
    rows = run.rounds().to_table(columns=["task", "method", *FORWARDS, *lists], filter=wanted).to_pandas()
    for name in lists:
        values = np.array([[math.nan] * len(further) if each is None else each for each in rows.pop(name)], float)
        for at, role in enumerate(further):
            rows[f"{role}_{name.removeprefix('member_')}"] = values[:, at]
    sums = rows.groupby(["task", "method"], observed=True).sum()
    return pd.DataFrame(
        {
            role: sums[f"{role}_seconds"] / sums[f"{role}_forwards"].replace(0, np.nan)
            for role in ("target", "draft", *further)
        }
    )
