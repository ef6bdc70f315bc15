"""A pair of tiny models without a tokenizer, and a tokenizer whose words are the ids."""

from types import SimpleNamespace

import oracle

from specbench.engine.models.pair import Pair

SIZE = 40  # tokens of a chain


class Words:
    """A tokenizer whose words are the ids."""

    chat_template = bos_token_id = None

    def __init__(self, end: int | None = None, size: int = SIZE) -> None:
        self.eos_token_id, self.size = end, size

    def decode(self, ids, **_):
        return " ".join(map(str, ids))

    def get_vocab(self):
        return {str(i): i for i in range(self.size)}

    def get_added_vocab(self):
        return {}


def pair_without_tokenizer() -> Pair:
    """Two tiny models, and a tokenizer that nothing asks."""
    target, draft = oracle.tiny_pair("llama")
    return Pair("tiny", {"target": target, "draft": draft}, SimpleNamespace())
