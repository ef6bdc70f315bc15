"""`specbench analyze arbitrator`: read recorded rounds again, as they were and with the target's tokens changed."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pandas as pd
import torch
from torch import Tensor

from specbench.analysis.metrics import of_method
from specbench.analysis.rejections import DOCUMENT
from specbench.analysis.trace import REJECTED, RESCUED
from specbench.base.console import progress
from specbench.base.hashes import stable_seed
from specbench.config import UserError
from specbench.methods.collaborative.cospec import CoSpec, Learned
from specbench.results.stored import StoredRun
from specbench_extras.arbitrator.analysis import ASIS, CHANGES, Dependence, dependence
from specbench_extras.counterfactual.analysis import EXAMPLE, method_of
from specbench_extras.counterfactual.branches import Player


class Reader(Protocol):
    """A trained arbitrator, as methods.cospec.Learned."""

    least: float  # the logit of the threshold

    def begin(self, prompt: list[int]) -> None: ...

    def read(self, tokens: list[int]) -> None: ...

    def logits_at(self, tokens: Tensor, positions: list[int]) -> list[float]: ...


def carry_out(run: StoredRun, name: str | None, seed: int, aside: bool) -> Dependence:
    """Read all rounds of a trained arbitrator that met a mismatch. `aside` sends progress to stderr.

    Raises UserError as `counterfactual.method_of` and `Player` do, for another arbiter, and without any mismatch.
    """
    spec = method_of(run, name)
    player = Player(run, spec, seed)
    method: CoSpec = player.method
    if not isinstance(method.arbiter, Learned):
        raise UserError(f"{spec.name} of {run.folder} decides by rule or chance, and reads no tokens; {EXAMPLE}")
    texts = _texts(run, spec.name)
    if not texts:
        raise UserError(f"{spec.name} met no mismatch of draft and target in {run.folder}; take more documents")
    rows: list[dict[str, Any]] = []
    with progress("reading rounds", len(texts), aside) as advance:
        for (repeat, task, number), (tokens, rounds) in texts.items():
            prompt = player.encoded(task, number)
            rng = torch.Generator().manual_seed(stable_seed(seed, "arbitrator", repeat, task, number))
            decided = decisions(method.arbiter, prompt, tokens, rounds, player.pair.vocabulary, rng)
            rows += [{"task": task, "doc_id": number} | decision for decision in decided]
            advance(1)
    return dependence(run, spec.name, seed, rows)


def _texts(run: StoredRun, method: str) -> dict[tuple[int, str, int], tuple[list[int], pd.DataFrame]]:
    """The tokens and the rounds of each text that met a mismatch."""
    columns = [*DOCUMENT, "round", "committed", "draft_tokens", "target_tokens", "decisions"]
    rounds = run.rounds().to_table(columns=columns, filter=of_method(method)).to_pandas().sort_values("round")
    samples = run.scan_samples().to_table(columns=[*DOCUMENT, "tokens"], filter=of_method(method)).to_pandas()
    texts = {}
    by_text = dict(iter(rounds.astype({"task": str}).groupby(DOCUMENT)))
    for repeat, task, number, tokens in samples[[*DOCUMENT, "tokens"]].itertuples(index=False):
        mine = by_text[repeat, str(task), number]
        if any(map(decided, mine.decisions)):
            texts[repeat, str(task), number] = tokens.tolist(), mine
    return texts


def decided(codes: Iterable[int] | None) -> list[int]:
    """The positions of a draft at which the arbiter decided; the prefill has no draft."""
    return [] if codes is None else [i for i, code in enumerate(codes) if code in (REJECTED, RESCUED)]


def decisions(
    arbitrator: Reader, prompt: list[int], text: list[int], rounds: pd.DataFrame, vocabulary: int, rng: torch.Generator
) -> Iterator[dict[str, Any]]:
    """For each mismatch that a text decided on: `recorded`, and what the arbitrator says for ASIS and each of CHANGES.

    Decisions are True where the draft's token is kept.
    """
    arbitrator.begin(prompt)
    at = 0
    for step in rounds.itertuples():
        if positions := decided(step.decisions):
            drafted, targets = (torch.tensor(each.tolist()) for each in (step.draft_tokens, step.target_tokens))
            by_change = {
                name: [
                    logit > arbitrator.least for logit in arbitrator.logits_at(tokens, [first + i for i in positions])
                ]
                for name, (tokens, first) in blocks(drafted, targets, vocabulary, rng).items()
            }
            for j, i in enumerate(positions):
                yield {"recorded": step.decisions[i] == RESCUED} | {name: each[j] for name, each in by_change.items()}
        arbitrator.read(text[at : at + step.committed])
        at += step.committed


def blocks(drafted: Tensor, targets: Tensor, vocabulary: int, rng: torch.Generator) -> dict[str, tuple[Tensor, int]]:
    """What is read of a round for ASIS and each of CHANGES, and where the draft's tokens begin in it.

    `drafted` and `targets` are [K], and what is read is [2K], or [K] without the target's tokens.
    """
    other = (targets + torch.randint(1, vocabulary, targets.shape, generator=rng)) % vocabulary  # never the same token
    read = {
        ASIS: (torch.cat([drafted, targets]), 0),
        "random": (torch.cat([drafted, other]), 0),
        "copied": (torch.cat([drafted, drafted]), 0),
        "removed": (drafted, 0),
        "swapped": (torch.cat([targets, drafted]), len(targets)),
    }
    assert read.keys() == {ASIS, *CHANGES}
    return read
