"""Weighted logistic regression with L2, and how well its scores tell right from wrong."""

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
    """Weights [n] that give both labels the same sum and all together n; every label must occur."""
    n, right = len(labels), int(labels.sum())
    return np.where(labels, n / (2 * right), n / (2 * (n - right)))


def fit(features: Floats, labels: Bools, weights: Floats, penalty: float) -> Linear:
    """Minimise Σ weight · cross-entropy + penalty/2 |w|² over standardised features; the bias is free.

    Features [n, D] are brought to mean 0 and deviation 1 (those that never change are left out), and that is folded
    back into w and b, so that the result reads raw features.
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
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-7})
    w = found.x[:-1] * inverse
    return Linear(w, float(found.x[-1] - w @ mean))


def choose_penalty(features: Floats, labels: Bools, groups: NDArray[np.int64], penalties: tuple[float, ...]) -> float:
    """The penalty of the least balanced cross-entropy on left-out groups: five parts of the groups [n] in turn.

    The largest one where nothing can be compared, since what is left beside each part has one label only.
    """
    names = np.unique(groups)
    sign, weights = np.where(labels, 1.0, -1.0), balanced(labels)
    losses = dict.fromkeys(sorted(penalties, reverse=True), 0.0)  # of equals, the first is taken
    for part in range(5):
        out = np.isin(groups, names[part::5])
        if out.any() and len(set(labels[~out])) == 2:
            for penalty in losses:
                model = fit(features[~out], labels[~out], balanced(labels[~out]), penalty)
                losses[penalty] += float(weights[out] @ np.logaddexp(0, -sign[out] * model.scores(features[out])))
    return min(losses, key=lambda penalty: losses[penalty])


def auroc(labels: Bools, scores: Floats) -> float:
    """The chance that a true one scores above a false one, ties by half; nan where one label does not occur."""
    right, wrong = int(labels.sum()), int((~labels).sum())
    if not right or not wrong:
        return float("nan")
    return float((rankdata(scores)[labels].sum() - right * (right + 1) / 2) / (right * wrong))


@dataclass(frozen=True)
class AtThreshold:
    """What happens to judged tokens under one threshold."""

    threshold: float
    accepted: float  # share of all
    precision: float  # share of the accepted that are right; nan if none is accepted
    recall: float  # share of the right that are accepted; nan if none is right
    accuracy: float


def at_threshold(labels: Bools, scores: Floats, threshold: float) -> AtThreshold:
    """Of scores w·x + b [n], those with σ above the threshold are accepted."""
    kept = expit(scores) > threshold
    both = float((kept & labels).sum())
    precision = both / kept.sum() if kept.any() else float("nan")
    recall = both / labels.sum() if labels.any() else float("nan")
    return AtThreshold(threshold, float(kept.mean()), precision, recall, float((kept == labels).mean()))
