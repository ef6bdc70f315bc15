"""Structured output: a token that the constraint excludes has no probability, given the answer before it.

As with penalties, logits of a position then depend on the tokens before it, as a model's do: a session under a
constraint is a model of its own, whose law is the model's, renormalised over what is allowed at each position. So a
method that is exact for a session is exact under a constraint, whatever drafts it is given.

The automaton and its masks are llguidance's (https://github.com/guidance-ai/llguidance).
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.base.errors import UserError
from specbench.base.untrusted import brief
from specbench.config.specs import Constraint
from specbench.engine.clock import MASKS
from specbench.engine.penalties import Penalties
from specbench.engine.session import Unwatched, common
from specbench.engine.types import Watch

if TYPE_CHECKING:
    from llguidance import LLMatcher

TRIED = "".join(map(chr, range(32, 127)))  # a text of which both tokenizers must say the same
FORCED = 20_000  # bytes that must follow one another: a grammar that asks for more is taken for one without end


class Stuck(ValueError):
    """A constraint that cannot be followed further."""


class Grammars:
    """Constraints, compiled for the tokens of a pair.

    Args:
        tokenizer: the target's, of transformers.
        vocabulary: the number of logits.
        ends: the tokens that end a text; they are allowed where the text is complete.

    Raises:
        UserError: llguidance is not installed, it reads other text from the tokens than the tokenizer does, or no token
            ends a text.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, ends: frozenset[int]) -> None:
        try:
            from llguidance import LLMatcher
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise UserError(
                "constraints need llguidance; install it: pip install 'specbench-harness[grammar]'"
            ) from None
        self._make, self.vocabulary = LLMatcher, vocabulary
        self.ends = frozenset(token for token in ends if token < vocabulary)
        if not self.ends:
            raise UserError("a constrained text ends with an end token, and the models have none (or --ignore-eos)")
        try:
            self.tokens = from_tokenizer(tokenizer, max(len(tokenizer), vocabulary), sorted(self.ends))
            ids = tokenizer(TRIED, add_special_tokens=False)["input_ids"]
            texts = self.tokens.decode_str(ids), tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        except Exception as error:  # of any kind of tokenizer
            raise UserError(f"no constraint can be applied to this tokenizer ({brief(error)})") from None
        if texts[0].strip() != texts[1].strip():
            raise UserError(f"llguidance reads {brief(texts[0])!r} from tokens that stand for {brief(texts[1])!r}")
        self._compiled: dict[Constraint, LLMatcher] = {}

    def matcher(self, constraint: Constraint) -> "LLMatcher":
        """A new matcher at the beginning of a text. Raises UserError if no text follows the constraint."""
        if constraint not in self._compiled:
            self._compiled[constraint] = self._compile(constraint)
        return self._compiled[constraint].deep_copy()

    def _compile(self, constraint: Constraint) -> "LLMatcher":
        make: dict[str, Callable[[str], str]] = {
            "schema": self._make.grammar_from_json_schema,
            "regex": self._make.grammar_from_regex,
            "lark": self._make.grammar_from_lark,
        }
        matcher = self._make(self.tokens, make[constraint.kind](constraint.text), log_level=0)
        if matcher.is_error():
            raise UserError(f"the {constraint.kind} cannot be used: {brief(matcher.get_error())}")
        try:
            self.allowed(matcher)
        except Stuck:
            raise UserError(f"no text that these models can write follows the {constraint.kind}") from None
        if len(matcher.compute_ff_bytes()) > FORCED:
            raise UserError(f"the {constraint.kind} asks for more than {FORCED} characters, perhaps without end")
        return matcher

    def allowed(self, matcher: "LLMatcher") -> NDArray[np.bool_]:
        """Which tokens [V] may come next. Raises Stuck if there are none, or the matcher gives up."""
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            raise Stuck(f"the constraint cannot be followed further: {brief(matcher.get_error())}")
        return np.unpackbits(bits, count=self.vocabulary, bitorder="little").view(np.bool_)


@dataclass
class Constraining:
    """What the text that is being decoded must be: one for all sessions of a pair, changed from text to text."""

    grammars: Grammars
    draft: bool = False  # draft models are constrained, too
    current: Constraint | None = None
    roles: list[str] = field(default_factory=list)  # of the sessions that are under it

    def another(self) -> "Constraining":
        """The same for a text that is decoded at the same time."""
        return replace(self, current=None, roles=[])

    def of(self, role: str, penalties: Penalties | None, watch: Watch | None) -> "Penalties | Constrained | None":
        """What changes the logits of a session by the model's role."""
        if role != "target" and not self.draft:
            return penalties
        self.roles.append(role)
        return Constrained(self, penalties, watch or Unwatched(), role == "target")


class Constrained:
    """The change of one session's logits: penalties, then the constraint. As `Penalties`.

    If `strict`, a chain, and a tree, is fed from the last token of the text on, and what follows it is a draft.
    """

    def __init__(
        self, constraining: Constraining, penalties: Penalties | None, watch: Watch, strict: bool = False
    ) -> None:
        self.constraining, self.penalties, self._watch, self._strict = constraining, penalties, watch, strict
        self._follows: Constraint | None = None
        self._matcher: Any = None
        self._read: list[int] = []  # the tokens that the matcher has read

    def __bool__(self) -> bool:
        return self.constraining.current is not None or bool(self.penalties)

    def __call__(
        self, logits: Tensor, before: Sequence[int], block: Sequence[int], parents: Sequence[int] | None, prompt: int
    ) -> Tensor:
        """New logits, as `Penalties` gives them, -inf for every token that may not come next.

        Rows within the prompt, after the end of the text, and after a draft that is not allowed or leads nowhere are
        left alone. Raises Stuck if that is so of the text itself.
        """
        if self.penalties:
            logits = self.penalties(logits, before, block, parents, prompt)
        if self.constraining.current is None:
            return logits
        with self._watch.forward(MASKS, len(logits), len(before)):
            rows, allowed = [], []
            begins = parents is None or len(logits) == len(block)  # with a token of the text
            for row, answer in enumerate(_answers(before, block, parents, prompt, len(logits))):
                of_text = self._strict and (not answer or (begins and not row))
                if answer is not None and (may_follow := self._allowed(answer, of_text)) is not None:
                    rows.append(row)
                    allowed.append(may_follow)
            if not rows:
                return logits
            masked = logits.clone()
            may = torch.from_numpy(np.stack(allowed)).to(logits.device)
            masked[rows] = masked[rows].masked_fill(~may, -torch.inf)
            return masked

    def forced(self, answer: list[int]) -> list[int]:
        """The tokens that every answer goes on with that begins so, as the tokenizer reads their text; perhaps none."""
        if self.constraining.current is None:
            return []
        with self._watch.forward(MASKS, 1, len(answer)):
            return list(self._matcher.compute_ff_tokens()) if self._reads(answer) else []

    def _allowed(self, answer: list[int], of_text: bool) -> NDArray[np.bool_] | None:
        """Which tokens [V] may follow an answer; None if it has ended, or nothing may follow.

        Raises Stuck if nothing may follow an answer that is `of_text`, and not a draft.
        """
        grammars = self.constraining.grammars
        try:
            if self._reads(answer):
                return grammars.allowed(self._matcher)
            if of_text and grammars.ends.isdisjoint(answer):
                raise Stuck(f"token {len(answer)} of the answer is not allowed by its constraint")
        except Stuck:
            if of_text:
                raise
        return None

    def _reads(self, answer: list[int]) -> bool:
        """Move the matcher to the end of an answer, in place; False if the answer has ended or is not allowed."""
        if self._matcher is None or self._matcher.is_error() or self._follows != self.constraining.current:
            self._follows = self.constraining.current
            assert self._follows is not None
            self._matcher, self._read = self.constraining.grammars.matcher(self._follows), []
        shared = common(self._read, answer)
        if shared < len(self._read):
            self._matcher.rollback(len(self._read) - shared)
        new, ends = answer[shared:], self.constraining.grammars.ends
        text = list(itertools.takewhile(lambda token: token not in ends, new))
        taken = self._matcher.try_consume_tokens(text)
        self._read = answer[: shared + taken]
        return taken == len(new)


def _answers(
    before: Sequence[int], block: Sequence[int], parents: Sequence[int] | None, prompt: int, rows: int
) -> list[list[int] | None]:
    """The answer up to each of the last tokens of a block; None within the prompt. Arguments as of `Penalties`."""
    start, outside = list(before[prompt:]), max(0, prompt - len(before))
    if parents is None:
        ends = range(len(block) - rows + 1, len(block) + 1)
        return [[*start, *block[outside:end]] if end >= outside else None for end in ends]
    paths: list[list[int] | None] = []
    for token, parent in zip(block, parents, strict=True):
        paths.append([*((paths[parent] or []) if parent >= 0 else start), token])
    return paths[-rows:]
