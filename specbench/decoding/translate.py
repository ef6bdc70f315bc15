"""What a tokenizer's tokens are in another's: token-level intersection (Timor et al., arXiv 2502.05202, Algorithm 4).

A draft of another tokenizer proposes only tokens that the target has too, each in the target's id: its distribution
without the others, renormalised. The verification is the usual one, so every method stays as exact as it is, whatever
is written here; what a wrong guess costs is acceptance.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

Spelling = bytes | str  # the bytes that an ordinary token stands for; of a special one its name


class Translation:
    """From the target's ids to a draft's and back. `sizes` are the logits that the two models have."""

    def __init__(self, target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, sizes: tuple[int, int]) -> None:
        self.draft = draft
        self.size = sizes[0]
        self.spellings = spellings(target, sizes[0])
        own = spellings(draft, sizes[1])
        self.bytes = {one[0]: i for i, one in reversed(own.items()) if isinstance(one, bytes) and len(one) == 1}
        self.shared = paired(self.spellings, own, target, draft)  # target id -> draft id, each at most once
        begin, padded = target.bos_token_id, draft("")["input_ids"][:1]
        self.begin = begin
        self.start = padded if draft.bos_token_id is not None and padded == [draft.bos_token_id] else []
        self.strips, self.prepends = prepends(target, self.spellings), prepends(draft, own)
        self.stand_in = next(i for i in (draft.unk_token_id, draft.eos_token_id, 0) if i is not None)
        self._words: dict[tuple[bytes, bool], tuple[int, ...] | None] = {}
        self._spelled: dict[int, tuple[int, ...]] = {}
        self._tables: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}

    def tables(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """On a device: the target ids and the draft ids [S] that are shared, and the draft id of each target id [V]."""
        if device not in self._tables:
            theirs, ours = torch.tensor(list(self.shared)), torch.tensor(list(self.shared.values()))
            rows = torch.full((self.size,), self.stand_in).index_copy_(0, theirs, ours)
            self._tables[device] = theirs.to(device), ours.to(device), rows.to(device)
        return self._tables[device]

    def inside(self, tokens: Tensor) -> Tensor:
        """Target ids [n] as draft ids, one each; for one that the draft lacks, a stand-in."""
        return self.tables(tokens.device)[2][tokens]

    def outside(self, logits: Tensor) -> Tensor:
        """The draft's logits [n, V of the draft] over the target's vocabulary [n, V]; -inf for what it lacks."""
        theirs, ours, _ = self.tables(logits.device)
        return logits.new_full((logits.shape[0], self.size), -torch.inf).index_copy_(1, theirs, logits[:, ours])

    def spell(self, token: int) -> tuple[int, ...]:
        """One target token in the draft's: the same one, or several that write it; at least one."""
        if token not in self._spelled:
            self._spelled[token] = (self.shared[token],) if token in self.shared else self._written(token)
        return self._spelled[token]

    def _written(self, token: int) -> tuple[int, ...]:
        spelling = self.spellings.get(token)
        if isinstance(spelling, str):
            return self.word(spelling.encode()) or (self.stand_in,)
        found = self.word(spelling) if spelling else None
        if not found and spelling:  # part of a character: byte by byte
            found = tuple(self.bytes[byte] for byte in spelling if byte in self.bytes)
        return found or (self.stand_in,)

    def word(self, text: bytes, first: bool = False) -> tuple[int, ...] | None:
        """What the draft's tokenizer makes of a piece of a text; None: it is no UTF-8. `first`: the text begins so."""
        key = text, first
        if key not in self._words:
            self._words[key] = self._encode(text, first)
        return self._words[key]

    def _encode(self, text: bytes, first: bool) -> tuple[int, ...] | None:
        try:
            told = text.decode()
        except UnicodeDecodeError:
            return None
        if not self.prepends or first:
            return self._ids(told)
        if told.startswith(" "):  # the space that such a tokenizer puts before a text is the word's own
            return self._ids(told[1:])
        for sign in "\n.":  # within a word no space may come before it: whatever it does not merge with does
            ids, anchor = self._ids(sign + told), self._ids(sign)
            if ids[: len(anchor)] == anchor:
                return ids[len(anchor) :]
        return self._ids(told)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.draft(text, add_special_tokens=False)["input_ids"])


class Reading:
    """A growing text of the target's tokens as the draft reads it.

    Every finished word is what the draft's tokenizer makes of it; the last, which may go on, is spelled token by token.
    `ends[i]` is how many of the draft's `ids` stand for the first i + 1 of the target's `tokens`; within a word that
    the two divide differently it is the nearest place.
    """

    def __init__(self, translation: Translation) -> None:
        self.translation = translation
        self.tokens: list[int] = []
        self.ids: list[int] = []
        self.ends: list[int] = []
        self.settled = 0  # tokens of finished words

    def read(self, context: Sequence[int], shared: int) -> None:
        """Become `context`, whose first `shared` tokens are those of the text that was read last; never empty."""
        if shared <= self.settled:  # another text, or a word that goes on
            self.settled = 0
        del self.tokens[self.settled :], self.ends[self.settled :]
        del self.ids[self.ends[-1] if self.ends else 0 :]
        if not self.settled:
            self.ids += self.translation.start
        for piece, finished in self._pieces(context[self.settled :]):
            self._add(piece, finished)
        if not self.ids:  # nothing but a begin token, and the draft knows none
            self.ids.append(self.translation.stand_in)
            self.ends[-1] = 1

    def _pieces(self, tokens: Sequence[int]) -> Iterator[tuple[Sequence[int], bool]]:
        """Runs of tokens, each from one beginning of a word to the next; the last one is not finished."""
        spellings = self.translation.spellings
        start = 0
        before: Spelling = b" "
        for i, token in enumerate(tokens):
            now = spellings.get(token, b"")
            special = isinstance(now, str) or isinstance(before, str)
            if i > start and (special or (now[:1] == b" " and now[1:2].strip() and before[-1:].strip())):
                yield tokens[start:i], True
                start = i
            before = now
        if start < len(tokens):
            yield tokens[start:], False

    def _add(self, piece: Sequence[int], finished: bool) -> None:
        told, at = self.translation, len(self.ids)
        begins = self.tokens in ([], [told.begin])
        # The draft's own begin token stands there already.
        spelled = [() if not self.tokens and token == told.begin else told.spell(token) for token in piece]
        ids = [i for one in spelled for i in one]
        texts = [told.spellings.get(token) for token in piece]
        if finished:
            if all(isinstance(text, bytes) for text in texts):
                word = b"".join(text for text in texts if isinstance(text, bytes))
                if begins and told.strips:  # that space is the target's tokenizer's, not the text's
                    word = word.removeprefix(b" ")
                ids = list(told.word(word, begins) or ids)
            self.settled = len(self.tokens) + len(piece)
        self.tokens += piece
        self.ids += ids
        for one in spelled:
            at = min(at + len(one), len(self.ids))
            self.ends.append(at)
        self.ends[-1] = len(self.ids)


def spellings(tokenizer: PreTrainedTokenizerBase, size: int) -> dict[int, Spelling]:
    """What each token below `size` stands for, in the middle of a text.

    Byte-level tokens are written in an alphabet of their own ("Ġ" for a space), SentencePiece's with "▁" for a space
    and "<0xE4>" for a byte.
    """
    vocabulary = tokenizer.get_vocab()
    byte_level = "Ġ" in vocabulary and "▁" not in vocabulary
    added = tokenizer.added_tokens_decoder
    found: dict[int, Spelling] = {}
    for token, i in sorted(vocabulary.items(), key=lambda item: item[1]):
        if i >= size:
            continue
        if i in added:
            found[i] = added[i].content if added[i].special else added[i].content.encode()
        elif byte_level:
            found[i] = bytes(ALPHABET[sign] for sign in token) if ALPHABET.keys() >= set(token) else token.encode()
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            found[i] = bytes([int(token[3:5], 16)])
        else:
            found[i] = token.replace("▁", " ").encode()
    return found


def _alphabet() -> dict[str, int]:
    """The sign of each byte in byte-level tokens: itself where it can be seen, else the next ones from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(seen)]
    return {chr(byte): byte for byte in seen} | {chr(256 + i): byte for i, byte in enumerate(others)}


ALPHABET = _alphabet()


def paired(
    theirs: dict[int, Spelling],
    ours: dict[int, Spelling],
    target: PreTrainedTokenizerBase,
    draft: PreTrainedTokenizerBase,
) -> dict[int, int]:
    """Target id -> draft id of the tokens that both have. End and begin tokens are each other's, however called."""
    named = [(target.eos_token_id, draft.eos_token_id), (target.bos_token_id, draft.bos_token_id)]
    found: dict[int, int] = {}
    for one, other in named:
        if one in theirs and other in ours and one not in found and other not in found.values():
            found[one] = other
    taken = set(found.values())
    # Of several with one spelling (SentencePiece's byte "<0x41>" and its "A") the last is the one that it writes.
    ids = {spelling: i for i, spelling in ours.items() if i not in taken}
    for i, spelling in reversed(theirs.items()):
        if i not in found and spelling in ids:
            found[i] = ids.pop(spelling)
    return found


def prepends(tokenizer: PreTrainedTokenizerBase, told: dict[int, Spelling]) -> bool:
    """Whether a tokenizer puts a space before a text, as SentencePiece does."""
    ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    spelling = told.get(ids[0]) if ids else None
    return isinstance(spelling, bytes) and spelling[:1] == b" "
