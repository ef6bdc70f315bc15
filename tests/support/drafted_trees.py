"""Drafted trees as tests read them: nodes as paths of tokens, and what a verdict says of their shape."""

from collections.abc import Sequence

from specbench.engine.types import Verdict


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """The nodes of a tree as paths of tokens from the context, in their order."""
    results: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        results.append((*(results[parent] if parent >= 0 else ()), token))
    return results


def has_later_sibling(verdict: Verdict) -> bool:
    """Whether a token stands that was not the first one drafted in its place."""
    return any(verdict.parents[i] in verdict.parents[:i] for i in verdict.path)
