"""Scoring of pocket_cnndm, for lm-eval's `!function`; apart, as no other task needs nltk, which ROUGE imports."""

import functools

from rouge_score.rouge_scorer import RougeScorer


@functools.cache
def _rouge() -> RougeScorer:
    return RougeScorer(["rouge1", "rougeL"], use_stemmer=True)


def score_summary(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    """F-measures of ROUGE-1 and ROUGE-L with stemming, from 0 to 1."""
    scores = _rouge().score(doc["highlights"], results[0])
    return {name: score.fmeasure for name, score in scores.items()}
