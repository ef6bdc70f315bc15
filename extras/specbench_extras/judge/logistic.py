"""Weighted logistic regression with an L2 penalty, and how well its scores separate true labels from false ones."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import rankdata

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Linear:
    """σ(w·x + b) is the probability of a true label."""

    weight: Floats  # [D]
    bias: float

    def scores(self, features: Floats) -> Floats:
        """w·x + b of features [n, D]: [n]."""
        return features @ self.weight + self.bias


def balanced(labels: Bools) -> Floats:
    """Weights [n] whose sum is n and equal for both labels; each label must occur."""
    n, true = len(labels), int(labels.sum())
    return np.where(labels, n / (2 * true), n / (2 * (n - true)))


def fit(features: Floats, labels: Bools, weights: Floats, penalty: float) -> Linear:
    """Minimise Σ weight · cross-entropy + penalty/2 |w|² over standardised features; the bias has no penalty.

    Features [n, D] are scaled to mean 0 and deviation 1 (constant ones are left out), and the scaling is folded back
    into w and b, so that the result reads raw features.
    """
    mean, deviation = features.mean(0), features.std(0)
    inverse = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 1e-12)
    x = (features - mean) * inverse
    sign = np.where(labels, 1.0, -1.0)

    def loss(parameters: Floats) -> tuple[float, Floats]:
        w, b = parameters[:-1], parameters[-1]
        margins = sign * (x @ w + b)
        slopes = -weights * sign * expit(-margins)
        value = float(weights @ np.logaddexp(0, -margins)) + penalty / 2 * float(w @ w)
        return value, np.append(slopes @ x + penalty * w, slopes.sum())

    start = np.zeros(x.shape[1] + 1)
    result = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-7})
    w = result.x[:-1] * inverse
    return Linear(w, float(result.x[-1] - w @ mean))


def choose_penalty(features: Floats, labels: Bools, groups: NDArray[np.int64], penalties: tuple[float, ...]) -> float:
    """The penalty with the least balanced cross-entropy on left-out groups: each fifth of the groups [n] in turn.

    The largest penalty if nothing can be compared because the rest of every fifth has only one label.
    """
    names = np.unique(groups)
    sign, weights = np.where(labels, 1.0, -1.0), balanced(labels)
    losses = dict.fromkeys(sorted(penalties, reverse=True), 0.0)  # the first of equals is taken
    for part in range(5):
        out = np.isin(groups, names[part::5])
        if out.any() and len(set(labels[~out])) == 2:
            for penalty in losses:
                model = fit(features[~out], labels[~out], balanced(labels[~out]), penalty)
                losses[penalty] += float(weights[out] @ np.logaddexp(0, -sign[out] * model.scores(features[out])))
    return min(losses, key=lambda penalty: losses[penalty])


def auroc(labels: Bools, scores: Floats) -> float:
    """The chance that a true label scores above a false one, ties counting half; NaN if one label does not occur."""
    true, false = int(labels.sum()), int((~labels).sum())
    if not true or not false:
        return float("nan")
    return float((rankdata(scores)[labels].sum() - true * (true + 1) / 2) / (true * false))


@dataclass(frozen=True)
class AtThreshold:
    """The figures of judged tokens under one threshold."""

    threshold: float
    accepted: float  # share of all
    precision: float  # share of the accepted that are right; NaN if none is accepted
    recall: float  # share of the right ones that are accepted; NaN if none is right
    accuracy: float


def at_threshold(labels: Bools, scores: Floats, threshold: float) -> AtThreshold:
    """The figures if scores w·x + b [n] are accepted whose σ is above the threshold."""
    kept = expit(scores) > threshold
    kept_and_right = float((kept & labels).sum())
    precision = kept_and_right / kept.sum() if kept.any() else float("nan")
    recall = kept_and_right / labels.sum() if labels.any() else float("nan")
    return AtThreshold(threshold, float(kept.mean()), precision, recall, float((kept == labels).mean()))
