"""The data of SpecDec++'s acceptance head (arXiv 2405.19715, section 4.4): p_acc of draft tokens, with token mixing.

The target samples a response X to a document. At each place the draft, which has read the prompt and X_1 … X_{i-1},
draws Y_i ~ q; min(1, p(Y_i) / q(Y_i)) is the chance that Y_i would be accepted. Then the draft reads a mixture Z, in
which Z_i is X_i with probability r and Y_i otherwise; the head sees its hidden state after each Y_i.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.base.hashes import stable_seed
from specbench.engine.models.heads import fingerprint
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import draw, probabilities
from specbench.engine.session import LAST
from specbench.engine.types import Sampling
from specbench.training.collected import Facts, collect_all, half, state_column, states_of
from specbench.training.documents import Document

PLAIN = Sampling(1.0)


@dataclass(frozen=True)
class Observed:
    """The n draft tokens of one document that are in the mixture; n may be 0."""

    positions: NDArray[np.int32]  # [n]: in the response, from 0
    tokens: NDArray[np.int32]  # [n]: Y_i
    accepted: NDArray[np.float32]  # [n]: p_acc
    confidence: NDArray[np.float32]  # [n]: q(Y_i); of the plain softmax if decoding is greedy
    hidden: NDArray[np.float16]  # [n, H]: the draft's last hidden state after Y_i in the mixture


class Collector:
    """Collects one document after the other; its random draws depend on the seed and the document's name alone.

    If `warped`, p, q and Y are under `sampling`, as in decoding; otherwise under the plain softmax, as in the official
    code. X is under `sampling` in any case. Greedy responses come with greedy drafts, which are accepted (1) if they
    are the target's own choice, and otherwise rejected (0).
    """

    def __init__(self, pair: Pair, sampling: Sampling, warped: bool, mix: float, seed: int) -> None:
        self.pair, self.sampling, self.mix, self.seed = pair, sampling, mix, seed
        self.judged = sampling if warped or sampling.greedy else PLAIN
        self.target, self.draft = pair.session("target"), pair.session("draft")

    def collect(self, document: Document) -> Observed:
        """Collect all positions of the response, the first one included, as in the official code."""
        rng = torch.Generator(self.pair.device).manual_seed(stable_seed(self.seed, "acceptance", document.name))
        response, p_logits = self.respond(document, rng)
        n = len(response)
        self.draft.truncate(0)
        q_logits = self.draft.forward([*document.prompt, *response[:-1]], keep=n).logits  # [n, V]
        drawn, q = draw(q_logits, self.judged, rng)
        accepted, confidence = weigh(p_logits.to(q_logits.device), q_logits, drawn, q, self.judged)
        mixed_in = torch.rand(n, generator=rng, device=self.pair.device).to(drawn.device) < self.mix
        mixture = torch.where(mixed_in, torch.tensor(response, device=drawn.device), drawn)
        self.draft.truncate(len(document.prompt))
        hidden = self.draft.forward(mixture, hidden=LAST).hidden  # [n, H]: row i is the state after Z_i
        assert hidden is not None
        kept = ~mixed_in
        return Observed(
            positions=kept.nonzero()[:, 0].cpu().numpy().astype(np.int32),
            tokens=drawn[kept].cpu().numpy().astype(np.int32),
            accepted=accepted[kept].float().cpu().numpy(),
            confidence=confidence[kept].float().cpu().numpy(),
            hidden=half(hidden[kept]),
        )

    def respond(self, document: Document, rng: torch.Generator) -> tuple[list[int], Tensor]:
        """The target's response X, to the end of its text, and the logits [n, V] that its tokens were drawn from."""
        ending, rows = document.ending(self.pair), []
        logits = self.target.restart(document.prompt).logits
        while not ending.reason:
            token = int(draw(logits, self.sampling, rng)[0])
            rows.append(logits)
            ending.keep([token])
            if not ending.reason:
                logits = self.target.forward([token]).logits
        return ending.tokens, torch.cat(rows)[: len(ending.tokens)]

    def facts(self, document: Document) -> Facts:
        """Everything that a document's data depends on, apart from the models' weights."""
        return {
            **document.facts,
            "temperature": self.sampling.temperature,
            "top_k": self.sampling.top_k,
            "warped": self.judged == self.sampling,
            "mix": self.mix,
            "seed": self.seed,
        }


def weigh(
    p_logits: Tensor, q_logits: Tensor, drawn: Tensor, q: Tensor | None, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """p_acc and q(Y) [n] of tokens `drawn` [n] from distributions `q` [n, V], None for greedy ones; logits [n, V]."""
    column = drawn[:, None]
    if q is None:
        return (p_logits.argmax(-1) == drawn).float(), probabilities(q_logits, PLAIN).gather(1, column)[:, 0]
    chance = q.gather(1, column)[:, 0]
    return (probabilities(p_logits, sampling).gather(1, column)[:, 0] / chance).clamp(max=1), chance


def observe_all(
    collector: Collector, documents: Sequence[Document], folder: Path, advance: Callable[[int], None]
) -> dict[str, Observed]:
    """Collect every document into a file of its own in `folder`; arguments and errors as in `collect_all`."""
    fingerprints = {role: fingerprint(model) for role, model in collector.pair.models.items()}

    def facts(document: Document) -> Facts:
        return {**fingerprints, **collector.facts(document)}

    return collect_all(
        documents, folder, facts, lambda document: as_table(collector.collect(document)), from_table, advance
    )


def as_table(observed: Observed) -> pa.Table:
    columns = {name: pa.array(getattr(observed, name)) for name in ("positions", "tokens", "accepted", "confidence")}
    return pa.table({**columns, "hidden": state_column(observed.hidden)})


def from_table(table: pa.Table) -> Observed:
    positions, tokens, accepted, confidence = (column.to_numpy() for column in table.columns[:4])
    return Observed(positions, tokens, accepted, confidence, states_of(table["hidden"]))
