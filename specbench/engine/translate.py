"""From one tokenizer's tokens to another's: token-level intersection (Timor et al., arXiv 2502.05202, Algorithm 4).

A draft with another tokenizer proposes only tokens that the target has too, under the target's ids: its distribution
without all others, renormalised. Verification is the usual one, so no error here can make a method less exact; a wrong
translation only costs acceptance.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

Spelling = bytes | str  # the bytes that an ordinary token stands for; the name of a special one


class Translation:
    """Translates the target's ids to a draft's and back. `sizes` are the numbers of logits of the two models."""

    def __init__(self, target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, sizes: tuple[int, int]) -> None:
        self.draft = draft
        self.size, self.size_draft = sizes
        self.spellings = spellings(target, sizes[0])
        draft_spellings = spellings(draft, sizes[1])
        self.bytes = {
            spelling[0]: i
            for i, spelling in reversed(draft_spellings.items())
            if isinstance(spelling, bytes) and len(spelling) == 1
        }
        self.shared = shared_ids(self.spellings, draft_spellings, target, draft)  # target id -> draft id, one to one
        begin, padded = target.bos_token_id, draft("")["input_ids"][:1]
        self.begin = begin
        self.start = padded if draft.bos_token_id is not None and padded == [draft.bos_token_id] else []
        self.strips, self.prepends = prepends(target, self.spellings), prepends(draft, draft_spellings)
        self.stand_in = next(i for i in (draft.unk_token_id, draft.eos_token_id, 0) if i is not None)
        self._words: dict[tuple[bytes, bool], tuple[int, ...] | None] = {}
        self._spelled: dict[int, tuple[int, ...]] = {}
        self._tables: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}

    def tables(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """On a device: the shared ids [S], the target's and the draft's, and the draft id of every target id [V]."""
        if device not in self._tables:
            target_ids, draft_ids = torch.tensor(list(self.shared)), torch.tensor(list(self.shared.values()))
            rows = torch.full((self.size,), self.stand_in).index_copy_(0, target_ids, draft_ids)
            self._tables[device] = target_ids.to(device), draft_ids.to(device), rows.to(device)
        return self._tables[device]

    def inside(self, tokens: Tensor) -> Tensor:
        """Target ids [n] as draft ids [n]; a token that the draft lacks becomes a stand-in."""
        return self.tables(tokens.device)[2][tokens]

    def outside(self, logits: Tensor) -> Tensor:
        """The draft's logits [n, its V] over the target's vocabulary [n, V]; -inf for tokens that the draft lacks."""
        target_ids, draft_ids, _ = self.tables(logits.device)
        return logits.new_full((logits.shape[0], self.size), -torch.inf).index_copy_(
            1, target_ids, logits[:, draft_ids]
        )

    def spell(self, token: int) -> tuple[int, ...]:
        """The draft's tokens for one target token: the same token, or several that spell it; at least one."""
        if token not in self._spelled:
            self._spelled[token] = (self.shared[token],) if token in self.shared else self._spell(token)
        return self._spelled[token]

    def _spell(self, token: int) -> tuple[int, ...]:
        spelling = self.spellings.get(token)
        if isinstance(spelling, str):
            return self.word(spelling.encode()) or (self.stand_in,)
        ids = self.word(spelling) if spelling else None
        if not ids and spelling:  # part of a character: byte by byte
            ids = tuple(self.bytes[byte] for byte in spelling if byte in self.bytes)
        return ids or (self.stand_in,)

    def word(self, text: bytes, first: bool = False) -> tuple[int, ...] | None:
        """The draft's tokens for a piece of a text; None if it is not UTF-8. `first`: the piece begins the text."""
        key = text, first
        if key not in self._words:
            self._words[key] = self._encode(text, first)
        return self._words[key]

    def _encode(self, text: bytes, first: bool) -> tuple[int, ...] | None:
        try:
            characters = text.decode()
        except UnicodeDecodeError:
            return None
        if not self.prepends or first:
            return self._ids(characters)
        if characters.startswith(" "):  # the tokenizer puts this space before the text by itself
            return self._ids(characters[1:])
        for anchor in "\n.":  # no space may be put before a piece within a word: encode it after an anchor
            ids, anchor_ids = self._ids(anchor + characters), self._ids(anchor)
            if ids[: len(anchor_ids)] == anchor_ids:  # the two do not merge
                return ids[len(anchor_ids) :]
        return self._ids(characters)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.draft(text, add_special_tokens=False)["input_ids"])


class Reading:
    """A growing text of the target's `tokens`, and the draft's `ids` for it.

    Every finished word is encoded by the draft's tokenizer. The last word may continue, so it is spelled token by
    token. `ends[i]` is how many of `ids` stand for the first i + 1 of `tokens`; within a word that the two tokenizers
    divide differently it is the nearest place.
    """

    def __init__(self, translation: Translation) -> None:
        self.translation = translation
        self.tokens: list[int] = []
        self.ids: list[int] = []
        self.ends: list[int] = []
        self.settled = 0  # tokens of finished words

    def read(self, context: Sequence[int], shared: int) -> None:
        """Read `context`, in place; its first `shared` tokens equal the last text. Afterwards `ids` is never empty."""
        if shared <= self.settled:  # another text, or a finished word that continues after all
            self.settled = 0
        del self.tokens[self.settled :], self.ends[self.settled :]
        del self.ids[self.ends[-1] if self.ends else 0 :]
        if not self.settled:
            self.ids += self.translation.start
        for piece, finished in self._pieces(context[self.settled :]):
            self._add(piece, finished)
        if not self.ids:  # the text is only a begin token, which the draft lacks
            self.ids.append(self.translation.stand_in)
            self.ends[-1] = 1

    def _pieces(self, tokens: Sequence[int]) -> Iterator[tuple[Sequence[int], bool]]:
        """Runs of tokens from one beginning of a word to the next, with True if finished; the last one is not."""
        spellings = self.translation.spellings
        start = 0
        previous: Spelling = b" "
        for i, token in enumerate(tokens):
            spelling = spellings.get(token, b"")
            special = isinstance(spelling, str) or isinstance(previous, str)
            if i > start and (special or (spelling[:1] == b" " and spelling[1:2].strip() and previous[-1:].strip())):
                yield tokens[start:i], True
                start = i
            previous = spelling
        if start < len(tokens):
            yield tokens[start:], False

    def _add(self, piece: Sequence[int], finished: bool) -> None:
        """Append a run of tokens and the draft's ids for it, in place."""
        translation, end = self.translation, len(self.ids)
        begins = self.tokens in ([], [translation.begin])
        # The draft's own begin token, if any, is in `ids` already.
        spelled = [
            () if not self.tokens and token == translation.begin else translation.spell(token) for token in piece
        ]
        ids = [i for token_ids in spelled for i in token_ids]
        texts = [translation.spellings.get(token) for token in piece]
        if finished:
            if all(isinstance(text, bytes) for text in texts):
                word = b"".join(text for text in texts if isinstance(text, bytes))
                if begins and translation.strips:  # the target's tokenizer put this space there; it is not the text's
                    word = word.removeprefix(b" ")
                ids = list(translation.word(word, begins) or ids)
            self.settled = len(self.tokens) + len(piece)
        self.tokens += piece
        self.ids += ids
        for token_ids in spelled:
            end = min(end + len(token_ids), len(self.ids))
            self.ends.append(end)
        self.ends[-1] = len(self.ids)


def spellings(tokenizer: PreTrainedTokenizerBase, size: int) -> dict[int, Spelling]:
    """The spelling of each token below `size`, as in the middle of a text.

    Byte-level tokenizers write tokens in an alphabet of their own ("Ġ" for a space); SentencePiece writes "▁" for a
    space and "<0xE4>" for a byte.
    """
    vocabulary = tokenizer.get_vocab()
    byte_level = "Ġ" in vocabulary and "▁" not in vocabulary
    added = tokenizer.added_tokens_decoder
    spelled: dict[int, Spelling] = {}
    for token, i in sorted(vocabulary.items(), key=lambda item: item[1]):
        if i >= size:
            continue
        if i in added:
            spelled[i] = added[i].content if added[i].special else added[i].content.encode()
        elif byte_level:
            spelled[i] = bytes(ALPHABET[sign] for sign in token) if ALPHABET.keys() >= set(token) else token.encode()
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            spelled[i] = bytes([int(token[3:5], 16)])
        else:
            spelled[i] = token.replace("▁", " ").encode()
    return spelled


# Character -> byte in byte-level tokens.
ALPHABET = {character: byte for byte, character in bytes_to_unicode().items()}


def shared_ids(
    target_spellings: dict[int, Spelling],
    draft_spellings: dict[int, Spelling],
    target: PreTrainedTokenizerBase,
    draft: PreTrainedTokenizerBase,
) -> dict[int, int]:
    """Target id -> draft id of the tokens that both have. End tokens, and begin tokens, match whatever their names."""
    special = [(target.eos_token_id, draft.eos_token_id), (target.bos_token_id, draft.bos_token_id)]
    shared: dict[int, int] = {}
    for ours, theirs in special:
        both = ours in target_spellings and theirs in draft_spellings
        if both and ours not in shared and theirs not in shared.values():
            shared[ours] = theirs
    taken = set(shared.values())
    # Of several tokens with one spelling (SentencePiece's byte "<0x41>" and its "A"), a tokenizer writes the last.
    ids = {spelling: i for i, spelling in draft_spellings.items() if i not in taken}
    for i, spelling in reversed(target_spellings.items()):
        if i not in shared and spelling in ids:
            shared[i] = ids.pop(spelling)
    return shared


def prepends(tokenizer: PreTrainedTokenizerBase, spelled: dict[int, Spelling]) -> bool:
    """True if a tokenizer puts a space before a text, as SentencePiece does. `spelled` are its spellings."""
    ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    spelling = spelled.get(ids[0]) if ids else None
    return isinstance(spelling, bytes) and spelling[:1] == b" "
