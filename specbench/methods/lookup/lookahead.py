"""Lookahead decoding: the target guesses n-grams for itself by Jacobi iteration (arXiv 2402.02057). Lossless.

One forward a round does two things. The lookahead branch advances a window of guesses by one step and gathers n-grams
from it. The verification branch tests n-grams that were gathered before and begin with the last token.
"""

import random
from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Settings as Base
from specbench.engine.models.pair import Pair
from specbench.engine.ngrams import Ngram, Pool, trie
from specbench.engine.sampling import draw
from specbench.engine.session import Session
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Stateless, Watch


class Settings(Base):
    window: int = Field(ge=1, description="columns of the lookahead window (W)")
    ngram: int = Field(ge=2, description="tokens of an n-gram (N); the window has N - 1 rows")
    candidates: int = Field(ge=1, description="n-grams kept for each first token, and so tested in a round (G)")
    bonus: bool = Field(description="a candidate that is accepted whole brings the token after it, too")

    def reach(self) -> int:
        """The most tokens of a round, including the last committed one: (N - 1)(W + G) once the window is full."""
        # Before that the window has up to N - 2 rows, and one more column for each missing row.
        span = self.window + self.ngram - 1
        rows = min(self.ngram - 1, span // 2)
        return max((self.ngram - 1) * (self.window + self.candidates), rows * (span - rows))


class JacobiWindow:
    """Guesses ahead of the text, in rows and columns: the trajectories of Jacobi iterations.

    The token in row j and column w is j + w places after the last committed token. Row 0 is a chain that begins with
    the last committed token, which is not stored here; in the other rows the parent of a token is the one above it. So
    a token reads, of the window, row 0 up to its column, and the tokens above it in its column (Figure 2 of the paper).

    A new window has only row 0, of random tokens. Each round adds a row and removes a column, until there are `height`
    rows. From then on, row 0 drops out.
    """

    def __init__(self, seeds: list[int], height: int) -> None:
        self.rows, self.height = [seeds], height

    @property
    def width(self) -> int:
        return len(self.rows[0]) + 1

    @property
    def tokens(self) -> list[int]:
        return [token for row in self.rows for token in row]

    @property
    def parents(self) -> list[int]:
        """The parents of the last committed token and of all `tokens`, as indices into these; -1: the context."""
        return [i - 1 if i < self.width else i - self.width for i in range(self.width * len(self.rows))]

    def step(self, last: int, guessed: list[int]) -> list[Ngram]:
        """Add the guesses [width] after the bottom row, and advance by one place, in place.

        Returns the n-grams of a full window, one for each column, from row 0 down to the guess; row 0 begins with
        `last`, the last committed token when the target guessed.
        """
        if len(self.rows) < self.height:
            self.rows = [row[1:] for row in (*self.rows, guessed)]
            return []
        first, *others = self.rows
        ngrams = list(zip([last, *first], *others, guessed, strict=True))
        self.rows = [*others, guessed]
        self.rows[0] = self.rows[0][1:]
        return ngrams


class Lookahead(Stateless):
    """Decoding with a window and a pool of n-grams that are new for each prompt (as in the official code).

    The window advances by one place a round, however many tokens are committed (official code). It holds the likeliest
    tokens at any temperature.
    """

    penalised = True
    lossless = True

    def __init__(self, target: Session, settings: Settings) -> None:
        self.target, self.settings = target, settings
        self.reach = settings.reach()

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        token, _ = draw(self.target.restart(prompt).logits, sampling, rng)
        context = [*prompt, int(token)]
        yield Round(context[-1:])
        n, pool = self.settings.ngram, Pool(self.settings.candidates)
        # Drawn on the host, by the text's seed: the device need not send random numbers back.
        window = JacobiWindow(random.Random(rng.initial_seed()).choices(prompt, k=self.settings.window + n - 3), n - 1)
        while True:
            last = context[-1]
            tokens, parents = trie(pool.after(last))
            draft = Draft(torch.tensor(tokens, dtype=torch.long, device=self.target.device), None, parents)
            window_parents = window.parents
            size, bottom = len(window_parents), len(window_parents) - window.width
            branches = [*window_parents, *(0 if parent < 0 else size + parent for parent in parents)]
            logits = self.target.forward([last, *window.tokens, *tokens], parents=branches).logits
            # Copied to the host while the candidates are tested; it arrives before the verdict: one wait a round.
            guessed = logits[bottom:size].argmax(-1).to("cpu", non_blocking=True)
            most = n - 1 if self.settings.bonus else n - 2
            step, path = verify(draft, torch.cat([logits[:1], logits[size:]]), most, sampling, rng)
            self.target.keep(len(context), [size - 1 + i for i in path])
            for ngram in window.step(last, guessed.tolist()):
                pool.add(ngram)
            context += step.tokens
            yield step


def verify(
    draft: Draft, logits: Tensor, most: int, sampling: Sampling, rng: torch.Generator
) -> tuple[Round, tuple[int, ...]]:
    """The round that the target's logits [K + 1, V] after the text and each candidate token yield, and its path.

    At most `most` tokens of a candidate are accepted; where more pass, the next one of them is emitted after these.
    """
    if not draft.parents:
        token, _ = draw(logits, sampling, rng)
        return Round(token.tolist()), ()
    verdict = exact_tree(draft, Scored(logits), sampling, rng)
    if verdict.accepted > most:
        path = verdict.path[:most]
        verdict = verdict._replace(path=path, token=verdict.drafted[verdict.path[most]])
    return Round(verdict.committed, verdict), verdict.path


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target."""
    return Lookahead(pair.session("target", watch), settings)
