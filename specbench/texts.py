"""Token ids as text: what each token of a text adds to it, whatever the tokenizer."""

from collections.abc import Callable, Sequence
from itertools import pairwise, takewhile

from specbench import permissions
from specbench.config import UserError
from specbench.models import load_tokenizer, vocabulary_hash
from specbench.stored import StoredRun

Decode = Callable[[list[int]], str]
PART = "◌"  # stands for a token that is only a part of a character


def load_decode(run: StoredRun) -> Decode:
    """The detokenizer that wrote the run's texts. Raises UserError if it cannot be had, or is another one now."""
    told = run.manifest.get("tokenizer_hash")
    if not run.manifest.get("models") or not told:
        raise UserError(f"{run.folder} does not tell its tokenizer, so its tokens cannot be read as text")
    permissions.check_loading(run.plan, weights=False)
    spec = run.plan.pair.target
    tokenizer = load_tokenizer(spec, run.plan.trust_remote_code)
    if vocabulary_hash(tokenizer) != told:
        raise UserError(
            f"the tokenizer of {spec.model} is not the one that {run.folder} was made with (its vocabulary differs); "
            "put the old one back, or run anew"
        )
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


class Texts:
    """Texts of tokens, each decoded once."""

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self._first: dict[int, str] = {}
        self._inner: dict[int, str] = {}
        self._names: dict[int, str] = {}

    def first(self, token: int) -> str:
        """As the first token of a text: some tokenizers drop a leading space there."""
        if token not in self._first:
            self._first[token] = self.decode([token])
        return self._first[token]

    def inner(self, token: int) -> str:
        """Behind another token."""
        if token not in self._inner:
            self._inner[token] = self.decode([token, token])[len(self.first(token)) :]
        return self._inner[token]

    def draft(self, token: int, eos: int | None) -> str:
        """As a name for a token that is not in the text."""
        if token not in self._names:
            self._names[token] = PART if "\ufffd" in self.first(token) else self.first(token) and self.inner(token)
        return self._names[token] or ("<eos>" if token == eos else f"<{token}>")

    def pieces(self, tokens: Sequence[int], text: str) -> list[str] | None:
        """What each token adds to the decoded tokens, of which `text` is the beginning; None if it is not."""
        found: list[str] = []
        at = 0
        while at < len(tokens):
            part = list(takewhile(lambda token: "\ufffd" in self.first(token), tokens[at:]))
            if part:
                found += self._grown(part)
            else:
                found.append(self.inner(tokens[at]) if at else self.first(tokens[at]))
            at += len(part) or 1
        if not "".join(found).startswith(text):
            found = self._grown(tokens)
        return found if "".join(found).startswith(text) else None

    def _grown(self, tokens: Sequence[int]) -> list[str]:
        """What each token adds, by decoding one token more at a time; holds for every tokenizer."""
        whole = self.decode(list(tokens))
        ends = [0]
        for count in range(1, len(tokens) + 1):
            so_far = self.decode(list(tokens[:count])) if count < len(tokens) else whole
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(so_far, whole, strict=False)))
            ends.append(max(ends[-1], same))
        return [whole[start:end] for start, end in pairwise(ends)]
