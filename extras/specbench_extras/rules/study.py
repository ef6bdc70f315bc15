"""`specbench analyze rules`: how many tokens of a run's drafts each rule of acceptance would have kept.

Target and draft read every sampled draft of a run again. Their distributions give the expected number of accepted
tokens of each rule for the same drafts, so that rules are compared without the noise of separate runs. Chains of sps
and trees (`tree_rules`) have rules of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from specbench.analysis.drafts import recorded_rounds
from specbench.config import UserError
from specbench.engine.joint import block_weights
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import probabilities
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.engine.typical import typical
from specbench.measure.prepare import load_models_of
from specbench.results.stored import StoredRun
from specbench_extras.drafts.read_again import Prompts, drafts_in_context
from specbench_extras.drafts.two_readings import KEY, texts_to_read
from specbench_extras.multidraft.study import mean
from specbench_extras.rapid.cascade import trusted
from specbench_extras.rules import tree_rules
from specbench_extras.rules.tree_rules import DELTA, EPSILON

LENIENCE, ALPHA = 0.6, 0.1  # as in lossy.yaml and cascade.yaml

# p and q [K, V] of target and draft at the places of K drafted tokens -> expected accepted tokens.
Rule = Callable[[Tensor, Tensor, Tensor], Tensor]


def one_by_one(tokens: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Speculative sampling that follows p: the sum of the chances that the first i tokens are accepted."""
    return (p / q).gather(-1, tokens[:, None])[:, 0].clamp(max=1).cumprod(0).sum()


def as_a_block(tokens: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Block verification: given the first i tokens, at least i are accepted with the probability of their weight."""
    return block_weights(tokens, p, q)[1:].sum()


def as_typical(tokens: Tensor, p: Tensor, q: Tensor) -> Tensor:
    return typical(tokens, p, EPSILON, DELTA).to(p.dtype).cumprod(0).sum()


def of_a_mixture(tokens: Tensor, p: Tensor, q: Tensor, defer: str = "opt") -> Tensor:
    return one_by_one(tokens, torch.where(trusted(p, q, defer, ALPHA)[:, None], q, p), q)


RULES: dict[str, Rule] = {
    "token": one_by_one,
    "block": as_a_block,
    "typical": as_typical,
    "lenience": lambda tokens, p, q: one_by_one(tokens, p / LENIENCE, q),
    "cascade": of_a_mixture,
    "cascade-chow": partial(of_a_mixture, defer="chow"),
    "cascade-diff": partial(of_a_mixture, defer="diff"),
}
LOSSLESS = ("token", "block", "recursive", "kseq", "traversal")


@dataclass(frozen=True)
class Compared:
    """The expected accepted tokens of a draft under each rule.

    A table has rule, lossless, value, low, high, over, over_low, over_high (95 %; over its first rule); those of trees
    also method and drafts. A kind of drafts that a run lacks has no rows.
    """

    sampling: str
    methods: list[str]
    drafts: int
    documents: int
    figures: pd.DataFrame
    trees: pd.DataFrame = field(default_factory=pd.DataFrame)


def compared(run: StoredRun, method: str | None, advance: Callable[[int], None] = lambda count: None) -> Compared:
    """Read the drafts of a run again; `advance` is called after each text.

    Raises UserError as `texts_to_read`, for methods whose drafts have no rules here, and if prompts have changed since
    the run.
    """
    specs = {spec.name: spec for spec in run.plan.methods if spec.method == "sps" or tree_rules.rules_of(spec)}
    texts = [row for row in texts_to_read(run, method) if row["method"] in specs]
    if not texts:
        raise UserError(
            f"{run.folder} has no drafts of sps, mdsd or rsd-constant; "
            "`specbench run --method sps --temperature 1` makes some"
        )
    pair = load_models_of(run)
    pair.need_one_tokenizer("it cannot read the drafts token by token")
    drafts: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for name in dict.fromkeys(row["method"] for row in texts):
        for row in recorded_rounds(run, name):
            drafts.setdefault((row["repeat"], row["task"], row["doc_id"], name), []).append(row)
    prompts = Prompts(run, pair)
    sampling = Sampling(**run.plan.sampling.model_dump())
    read: dict[str, list[tuple[tuple[str, int], np.ndarray]]] = {}  # by tree method, "" for all chains
    for row in texts:
        spec, rounds = specs[row["method"]], drafts[tuple(row[name] for name in KEY)]
        group = "" if spec.method == "sps" else spec.name
        recorded = (prompts.tokens(row), list(row["tokens"]), rounds, sampling)
        values = tree_rules.of_text(pair, spec, *recorded) if group else of_text(pair, *recorded)
        read.setdefault(group, []).append(((row["task"], row["doc_id"]), values))
        advance(1)
    tables = {
        group: _table(of_group, tree_rules.rules_of(specs[group]) if group else list(RULES))
        for group, of_group in read.items()
    }
    trees = [table.assign(method=group) for group, table in tables.items() if group]
    return Compared(
        run.sampling,
        list(dict.fromkeys(row["method"] for row in texts)),
        sum(len(values) for of_group in read.values() for _, values in of_group),
        len({document for of_group in read.values() for document, _ in of_group}),
        tables.get("", pd.DataFrame()),
        pd.concat(trees, ignore_index=True) if trees else pd.DataFrame(),
    )


def _table(read: Sequence[tuple[tuple[str, int], np.ndarray]], rules: Sequence[str]) -> pd.DataFrame:
    """The figures of texts, each with its values [drafts, rules]."""
    documents, values = zip(*read, strict=True)
    sums, counts = np.array([part.sum(0) for part in values]), np.array([len(part) for part in values], float)
    return figure_table(documents, sums, counts, rules).assign(drafts=int(counts.sum()))


@torch.inference_mode()
def of_text(
    pair: Pair, prompt: list[int], tokens: list[int], rounds: Sequence[dict[str, Any]], sampling: Sampling
) -> np.ndarray:
    """The figure of each rule for each draft of a text [drafts, rules]."""
    target, draft = pair.session("target"), pair.session("draft")
    values = []
    for context, drafted, _ in drafts_in_context(prompt, tokens, rounds):
        p, q = (probabilities(rows(model, context, drafted).double(), sampling) for model in (target, draft))
        values.append([float(rule(torch.tensor(drafted, device=p.device), p, q)) for rule in RULES.values()])
    return np.array(values).reshape(-1, len(RULES))


def rows(session: Session, context: list[int], drafted: list[int]) -> Tensor:
    """A model's logits [K, V] at the places of K drafted tokens after a context."""
    first = session.catch_up(context).logits[-1:]
    return torch.cat([first, session.forward(drafted).logits[:-1]])


def figure_table(
    documents: Sequence[tuple[str, int]], sums: np.ndarray, counts: np.ndarray, rules: Sequence[str] = tuple(RULES)
) -> pd.DataFrame:
    """A table of `Compared`, by the sums of texts [texts, rules] and their numbers of drafts."""
    figures = []
    for at, rule in enumerate(rules):
        value, over = (mean(documents, part, counts) for part in (sums[:, at], sums[:, at] - sums[:, 0]))
        more = {"over": over.value, "over_low": over.low, "over_high": over.high}
        figures.append({"rule": rule, "lossless": rule in LOSSLESS} | vars(value) | more)
    return pd.DataFrame(figures)
