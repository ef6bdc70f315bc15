"""SWIFT's search for the sublayers to skip: random sets, and sometimes one that a Gaussian process suggests."""

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

Skip = tuple[int, ...]  # rising numbers among 2 (L - 2) sublayers: the attentions of layers 1 … L - 2, then their MLPs
Floats = NDArray[np.float64]

NOISE = 1e-2  # variance of a score that its set does not explain; scores are scaled to variance 1
LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # length scales that are tried, in units of one sublayer in or out
CANDIDATES = 500  # a suggestion is the best of so many random sets and so many neighbours of the best set


class Search:
    """The sets that were tried and their scores; `best` is the one to draft with.

    The first set is used until any other one scores above 0; it is not scored itself (official code).
    """

    def __init__(
        self,
        first: Skip,
        sublayers: int,
        skipped: int,
        bayes_interval: int = 25,
        kappa: float = 2.5,
        max_score: float = 0.93,
        max_stale: int = 300,
        max_tries: int = 1000,
    ) -> None:
        self.sublayers, self.skipped = sublayers, skipped
        self.bayes_interval, self.kappa = bayes_interval, kappa
        self.max_score, self.max_stale, self.max_tries = max_score, max_stale, max_tries
        self.best, self.score = first, 0.0
        self.stale = 0  # tries since the last better one
        self.tried: list[tuple[Skip, float]] = []

    @property
    def ended(self) -> bool:
        tries = len(self.tried)
        over = tries > self.max_tries or not self.max_tries
        return self.score > self.max_score or self.stale > self.max_stale or over

    def propose(self, random: np.random.Generator) -> Skip:
        """The next set to try: every `bayes_interval`-th by the Gaussian process, the others at random."""
        if self.bayes_interval and (len(self.tried) + 1) % self.bayes_interval == 0 and self.tried:
            return suggest(self.tried, self.best, self.sublayers, self.kappa, random)
        return random_set(self.sublayers, self.skipped, random)

    def learn(self, skip: Skip, score: float) -> bool:
        """Note the score of a set, in place; returns True if it is now the best one."""
        self.tried.append((skip, score))
        better = score > self.score
        if better:
            self.best, self.score = skip, score
        self.stale = 0 if better else self.stale + 1
        return better


def random_set(sublayers: int, skipped: int, random: np.random.Generator) -> Skip:
    return tuple(sorted(random.choice(sublayers, skipped, replace=False).tolist()))


def suggest(
    tried: list[tuple[Skip, float]], best: Skip, sublayers: int, kappa: float, random: np.random.Generator
) -> Skip:
    """The untried set with the highest upper confidence bound, mean + κ deviations; a random one if all were tried.

    The model is a Gaussian process with a Matérn 5/2 kernel over sets as 0/1 vectors; its length scale is the likeliest
    of a few. The official code maximises over fractions and rounds them to a set. Here the candidates are sets: random
    ones, and those that swap one sublayer of the best (our inference).
    """
    known = {skip for skip, _ in tried}
    skipped = len(tried[0][0])
    others = [i for i in range(sublayers) if i not in best]
    swaps = [tuple(sorted({*best} - {out} | {into})) for out, into in product(best, others)]
    random.shuffle(swaps)
    drawn = [random_set(sublayers, skipped, random) for _ in range(CANDIDATES)]
    # If the first set has another size, so have its neighbours, and none is a candidate.
    near = [swap for swap in swaps[:CANDIDATES] if len(swap) == skipped]
    candidates = [skip for skip in dict.fromkeys([*near, *drawn]) if skip not in known]
    if not candidates:
        return drawn[0]
    mean, deviation = posterior(
        _vectors([skip for skip, _ in tried], sublayers),
        np.array([score for _, score in tried]),
        _vectors(candidates, sublayers),
    )
    return candidates[int(np.argmax(mean + kappa * deviation))]


def posterior(seen: Floats, scores: Floats, points: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation [n] of a Gaussian process at 0/1 vectors `points` [n, d], by `scores` [m] at `seen` [m, d]."""
    centre, spread = scores.mean(), scores.std() or 1.0
    y = (scores - centre) / spread
    between = _distances(seen, seen)
    fits = []
    for length in LENGTHS:
        lower = cholesky(matern(between / length) + NOISE * np.eye(len(y)), lower=True)
        weights = cho_solve((lower, True), y)
        likelihood = -0.5 * y @ weights - np.log(np.diag(lower)).sum()
        fits.append((likelihood, length, lower, weights))
    _, length, lower, weights = max(fits, key=lambda fit: fit[0])
    cross = matern(_distances(points, seen) / length)
    explained = (solve_triangular(lower, cross.T, lower=True) ** 2).sum(0)
    return centre + spread * (cross @ weights), spread * np.sqrt(np.maximum(1 - explained, 0))


def matern(r: Floats) -> Floats:
    """The Matérn kernel of smoothness 5/2 at distances r, in units of the length scale."""
    scaled = math.sqrt(5) * r
    return (1 + scaled + scaled**2 / 3) * np.exp(-scaled)


def _distances(a: Floats, b: Floats) -> Floats:
    """Distances [n, m] between 0/1 vectors [n, d] and [m, d]: the root of the number of places where they differ."""
    return np.sqrt(a @ (1 - b).T + (1 - a) @ b.T)


def _vectors(skips: list[Skip], sublayers: int) -> Floats:
    vectors = np.zeros((len(skips), sublayers))
    for row, skip in enumerate(skips):
        vectors[row, list(skip)] = 1
    return vectors
