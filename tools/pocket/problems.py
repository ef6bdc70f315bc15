"""Generated problems: their content is drawn from one stream of random choices, their wording from another.

A template is a function `(content, wording) -> fields`. Whatever makes the problem *this* problem (its numbers, the
function to write, the facts of a news item) is drawn from `content`, which remembers every choice; how it is told
(names, synonyms, order of sentences) is drawn from `wording`. Two problems with the same template and the same content
are the same problem however they are worded, and always fall into the same split.
"""

import builtins
import functools
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
Fields = dict[str, str]
SPLITS = ("train", "calibration", "test")


class Content:
    """Makes random choices and remembers them, in order, in `drawn`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.drawn: list[object] = []

    def int(self, low: builtins.int, high: builtins.int) -> builtins.int:
        """Draw an integer, both ends included."""
        return self._keep(self._rng.randint(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return self._keep(self._rng.choice(options))

    def sample(self, options: Sequence[T], count: builtins.int) -> list[T]:
        """Draw `count` different options, in drawn order."""
        return self._keep(self._rng.sample(options, count))

    def _keep(self, value: T) -> T:
        self.drawn.append(value)
        return value


Template = Callable[[Content, random.Random], Fields]


def templates(
    style: Callable[[random.Random], T], kinds: Iterable[Callable[[Content, T], Fields]]
) -> tuple[Template, ...]:
    """The templates of kinds of problems that are worded in a `style`, which is made again for each problem."""

    def template(kind: Callable[[Content, T], Fields]) -> Template:
        @functools.wraps(kind)
        def worded(content: Content, wording: random.Random) -> Fields:
            return kind(content, style(wording))

        return worded

    return tuple(map(template, kinds))


def table(text: str, separator: str | None = None) -> list[str]:
    """The entries of a text, by default its words."""
    return [entry.strip() for entry in text.split(separator)]


@dataclass(frozen=True)
class Problem:
    family: str
    template: str
    content: str  # the choices that make this problem, as text
    fields: Fields

    @property
    def split(self) -> str:
        return split_of(self.template, self.content)


def split_of(template: str, content: str) -> str:
    """The split that owns a problem: 10 % test, 10 % calibration, the rest train, by a hash of its content."""
    bucket = hashlib.sha256(f"{template}|{content}".encode()).digest()[0]
    return "test" if bucket < 26 else "calibration" if bucket < 52 else "train"


def problems(family: str, templates: Sequence[Template], split: str, seed: int) -> Iterator[Problem]:
    """Yield problems of one split forever, templates in turn; the same seed gives the same problems."""
    rng = random.Random(f"{family}/{split}/{seed}")
    while True:
        for template in templates:
            yield _draw(family, template, split, rng)


def _draw(family: str, template: Template, split: str, rng: random.Random) -> Problem:
    while True:
        content = Content(rng)
        fields = template(content, random.Random(rng.getrandbits(64)))
        problem = Problem(family, template.__name__, repr(content.drawn), fields)
        if problem.split == split:
            return problem
