"""Lookahead decoding: the target guesses n-grams for itself by Jacobi iteration (arXiv 2402.02057). Lossless.

One forward a round does two things. The lookahead branch moves a window of guesses on by one step and gathers n-grams
from it; the verification branch tests n-grams that were gathered before and begin with the last token.
"""

import random
from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.decoding.ngrams import Ngram, Pool, trie
from specbench.decoding.sampling import draw
from specbench.decoding.session import Session
from specbench.decoding.trees import exact_tree
from specbench.decoding.types import Draft, Method, Round, Sampling, Scored, Stateless, Watch
from specbench.models import Pair


class Settings(Base):
    window: int = Field(ge=1, description="columns of the lookahead window (W)")
    ngram: int = Field(ge=2, description="tokens of an n-gram (N); the window has N - 1 rows")
    candidates: int = Field(ge=1, description="n-grams kept for each first token, and so tested in a round (G)")

    def reach(self) -> int:
        """The most tokens of a round, the last committed one among them: (N - 1)(W + G) once the window is full."""
        # Before that it has up to N - 2 rows, and one column more for each that is missing.
        span = self.window + self.ngram - 1
        rows = min(self.ngram - 1, span // 2)
        return max((self.ngram - 1) * (self.window + self.candidates), rows * (span - rows))


class Window:
    """Guesses ahead of the text, in rows and columns: the trajectories of Jacobi iterations.

    The token in row j and column w stands j + w places behind the last committed one. Row 0 is a chain that begins with
    the last committed token, which is not kept here; in the other rows a token follows the one above it. All that a
    token reads of the window is thus row 0 up to its column, and its column above it (Figure 2 of the paper).

    A new window has row 0 alone, of random tokens; each round adds a row and takes a column, until there are `height`
    rows. From then on, row 0 falls out.
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
        """Of the last committed token, and of each of `tokens` behind it."""
        return [i - 1 if i < self.width else i - self.width for i in range(self.width * len(self.rows))]

    def step(self, last: int, guessed: list[int]) -> list[Ngram]:
        """Take up the guesses [width] behind the bottom row, in place, and go on by one place.

        Returns the n-grams of a full window, one for each column: from row 0, where `last` is the last committed token
        (as it was when the target guessed), down to the guess.
        """
        if len(self.rows) < self.height:
            self.rows = [row[1:] for row in (*self.rows, guessed)]
            return []
        first, *others = self.rows
        found = list(zip([last, *first], *others, guessed, strict=True))
        self.rows = [*others, guessed]
        self.rows[0] = self.rows[0][1:]
        return found


class Lookahead(Stateless):
    """Decoding with a window and a pool of n-grams of its own for each prompt (as in the official code).

    The window goes on by one place a round, however many tokens are committed (official code). At T > 0 it holds the
    likeliest tokens all the same.
    """

    lossless = True

    def __init__(self, target: Session, settings: Settings) -> None:
        self.target, self.settings = target, settings
        self.reach = settings.reach()

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        token, _ = draw(self.target.restart(prompt).logits, sampling, rng)
        context = [*prompt, int(token)]
        yield Round(context[-1:])
        n, pool = self.settings.ngram, Pool(self.settings.candidates)
        # Seeded by the text's seed: the window needs no random numbers that the device would have to send back.
        window = Window(random.Random(rng.initial_seed()).choices(prompt, k=self.settings.window + n - 3), n - 1)
        while True:
            last = context[-1]
            tokens, parents = trie(pool.behind(last))
            draft = Draft(torch.tensor(tokens, dtype=torch.long, device=self.target.device), None, parents)
            above = window.parents
            size, bottom = len(above), len(above) - window.width
            branches = [*above, *(0 if parent < 0 else size + parent for parent in parents)]
            logits = self.target.forward([last, *window.tokens, *tokens], parents=branches).logits
            # On its way to the host while the candidates are tested, and there when their verdict is: one wait a round.
            guessed = logits[bottom:size].argmax(-1).to("cpu", non_blocking=True)
            one, path = verify(draft, torch.cat([logits[:1], logits[size:]]), sampling, rng)
            self.target.keep(len(context), [size - 1 + i for i in path])
            for ngram in window.step(last, guessed.tolist()):
                pool.add(ngram)
            context += one.tokens
            yield one


def verify(draft: Draft, logits: Tensor, sampling: Sampling, rng: torch.Generator) -> tuple[Round, tuple[int, ...]]:
    """A round by the target's logits [K + 1, V] behind the text and each candidate token, and which of those stand.

    The free token behind a candidate that stands whole is committed too; the official code drops it when sampling, and
    in some versions at T = 0.
    """
    if not draft.parents:
        token, _ = draw(logits, sampling, rng)
        return Round(token.tolist()), ()
    verdict = exact_tree(draft, Scored(logits), sampling, rng)
    return Round(verdict.committed, verdict), verdict.path


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Of the pair the target alone. Raises UserError where a round would be longer than what the pair reads."""
    reach = settings.reach()
    if reach >= pair.context:
        raise UserError(
            f"lookahead: window {settings.window}, ngram {settings.ngram} and candidates {settings.candidates} make "
            f"rounds of up to {reach} tokens, but {pair.name} reads {pair.context}; choose smaller ones"
        )
    return Lookahead(pair.session("target", watch), settings)
