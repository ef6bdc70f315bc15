"""Token ids as text: what each token adds to its text, for any tokenizer."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise, takewhile
from typing import Any

from specbench import permissions
from specbench.base import environment
from specbench.config import UserError
from specbench.results import same_models
from specbench.results.stored import StoredRun

Decode = Callable[[list[int]], str]
PART = "◌"  # stands for a token that is only part of a character


def load_decode(run: StoredRun) -> Decode:
    """The detokenizer that wrote the run's texts; no weights are loaded.

    Raises UserError if the tokenizer is not available, or has changed since the run.
    """
    recorded_hash = run.manifest.get("tokenizer_hash")
    if not run.manifest.get("models") or not recorded_hash:
        raise UserError(f"{run.folder} does not name its tokenizer, so its tokens cannot be read as text")
    from specbench.engine.models.tokenizer import load_tokenizer, tokenizer_hash, vocabulary_hash

    permissions.check_loading(run.plan, weights=False)
    spec = run.plan.pair.target
    state = same_models.models_of(run.manifest)["target"].get("tokenizer_state")
    tokenizer = load_tokenizer(spec, run.plan.trust_remote_code, state)
    same = vocabulary_hash(tokenizer) == recorded_hash
    if not (same and same_models.same_tokenizer(run.manifest, tokenizer_hash(tokenizer), environment.versions())):
        what = "rules or added tokens differ" if same else "vocabulary differs"
        raise UserError(
            f"the tokenizer of {spec.model} is not the one that {run.folder} was made with (its {what}); put the old "
            "one back, or run it again"
        )
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def shared_start(first: Sequence[Any], second: Sequence[Any]) -> int:
    """The length of the beginning that two texts or lists share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


class DecodedTexts:
    """Texts of tokens, each decoded once."""

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        # The text of a token at the start of a text, where some tokenizers drop a leading space.
        self.first = cache(lambda token: decode([token]))
        # The text of a token that follows another.
        self.inner = cache(lambda token: decode([token, token])[len(self.first(token)) :])

    def draft(self, token: int, eos: int | None) -> str:
        """A name for a token that is not in the text; `eos` is the end token, if known."""
        name = PART if "\ufffd" in self.first(token) else self.first(token) and self.inner(token)
        return name or ("<eos>" if token == eos else f"<{token}>")

    def pieces(self, tokens: Sequence[int], text: str) -> list[str] | None:
        """What each token adds to the decoded text; None if that text does not start with `text`."""
        pieces: list[str] = []
        at = 0
        while at < len(tokens):
            part = list(takewhile(lambda token: "\ufffd" in self.first(token), tokens[at:]))
            if part:
                pieces += self._grown(part)
            else:
                pieces.append(self.inner(tokens[at]) if at else self.first(tokens[at]))
            at += len(part) or 1
        if not "".join(pieces).startswith(text):
            pieces = self._grown(tokens)
        return pieces if "".join(pieces).startswith(text) else None

    def _grown(self, tokens: Sequence[int]) -> list[str]:
        """What each token adds, by decoding one more token at a time; correct for every tokenizer."""
        whole = self.decode(list(tokens))
        ends = [0]
        for count in range(1, len(tokens) + 1):
            so_far = self.decode(list(tokens[:count])) if count < len(tokens) else whole
            ends.append(max(ends[-1], shared_start(so_far, whole)))
        return [whole[start:end] for start, end in pairwise(ends)]
