"""Texts of a sampled run as target and draft read them again: the two distributions at each token."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from specbench.analysis.metrics import timed_samples
from specbench.base.stats import Floats
from specbench.config import UserError
from specbench.engine.sampling import probabilities
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.results.stored import StoredRun

KINDS = ("sps", "mdsd", "rsd")  # methods whose first level `analyze multi-draft` predicts
KEY = ["repeat", "task", "doc_id", "method"]
AT_ONCE = 64  # positions whose distributions are held in float64
EXAMPLE = "`specbench run --method mdsd --suite pocket --temperature 1` makes one"


def texts_to_read(run: StoredRun, method: str | None) -> list[dict[str, Any]]:
    """The texts of a method, as rows of samples; by default those of KINDS, or of all methods if there are none.

    Raises UserError for a run that is greedy, imported or without a draft, and for an unknown method.
    """
    if not run.manifest.get("models") or "imported" in run.manifest:
        raise UserError(f"{run.folder} was imported, so its texts cannot be read again; {EXAMPLE}")
    if run.plan.pair.draft is None:
        raise UserError(f"the pair of {run.folder} has no draft model; choose a run of one that has")
    if run.plan.temperature == 0:
        raise UserError(f"{run.folder} is greedy, so it has no distributions to compare; {EXAMPLE}")
    specs = list(run.plan.methods)
    wanted = [spec for spec in specs if spec.name == method or (method is None and spec.method in KINDS)]
    if method is not None and not wanted:
        raise UserError(f"{run.folder} has no method {method}; it has {', '.join(spec.name for spec in specs)}")
    samples = timed_samples(run.samples([*KEY, "warmup", "finish", "tokens", "prompt_hash"]))
    samples = samples[samples.method.isin([spec.name for spec in wanted or specs])]
    if not any(len(tokens) > 1 for tokens in samples.tokens):
        raise UserError(f"{run.folder} has no text with a second token; run more documents")
    return samples.to_dict("records")


@torch.inference_mode()
def distributions(
    target: Session, draft: Session, prompt: list[int], tokens: list[int], sampling: Sampling
) -> Iterator[tuple[Floats, Floats]]:
    """p and q [V] at each token of a text after its first."""

    def rows(session: Session) -> Tensor:
        session.truncate(0)
        return session.forward([*prompt, *tokens[:-1]], keep=len(tokens)).logits[1:]

    if len(tokens) < 2:
        return
    logits = rows(target), rows(draft)
    for start in range(0, len(tokens) - 1, AT_ONCE):
        chunk = (probabilities(model[start : start + AT_ONCE].double(), sampling).cpu().numpy() for model in logits)
        yield from zip(*chunk, strict=True)
