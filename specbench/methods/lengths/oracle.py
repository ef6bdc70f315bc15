"""The bound of all draft lengths: stop just before each disagreement (SpecDec++, arXiv 2405.19715, Theorem 4.1).

Lossless, greedy only. It knows the text beforehand, as no real method does. It decodes the text in its prefill, so only
its decode time means something.
"""

from pydantic import Field

from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session, positions
from specbench.engine.types import Sampling
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import LengthSettings


class Settings(LengthSettings):
    tokens: int = Field(ge=1, description="how many tokens of a text it knows, the prefill's included")


class Oracle(Lengths):
    """Draft exactly the tokens that the target will accept.

    No draft token is discarded and no target forward is wasted. The prefill decodes the text with sessions of its own,
    which no watch times. After the first `tokens` tokens, or where the models' context ends, the text is unknown, and γ
    tokens are drafted.
    """

    def __init__(self, target: Session, draft: Session, eos_ids: frozenset[int], tokens: int) -> None:
        self.target, self.draft, self.eos_ids, self.tokens = target, draft, eos_ids, tokens

    def begin(self, prompt: list[int]) -> None:
        room = min(positions(self.target.model), positions(self.draft.model)) - len(prompt)
        text = [int(self.target.restart(prompt).logits.argmax(-1))]
        while len(text) < min(self.tokens, room) and text[-1] not in self.eos_ids:
            text.append(int(self.target.forward(text[-1:]).logits.argmax(-1)))
        self.draft.truncate(0)
        choices = self.draft.forward([*prompt, *text[:-1]], keep=len(text)).logits.argmax(-1).tolist()
        self.runs = [0] * len(text)  # how many tokens, from this one on, the draft model predicts right
        for i in reversed(range(len(text))):
            if choices[i] == text[i]:
                self.runs[i] = 1 + (self.runs[i + 1] if i + 1 < len(text) else 0)
        self.prompt = len(prompt)

    def most(self, gamma: int, context: int) -> int:
        place = context - self.prompt
        return min(gamma, self.runs[place]) if place < len(self.runs) else gamma

    def check(self, sampling: Sampling) -> None:
        if not sampling.greedy:
            raise ValueError("oracle knows greedy texts only; use --temperature 0")


def lengths(settings: Settings, pair: Pair) -> Lengths:
    pair.need_one_tokenizer("the oracle predicts the draft by letting it read the target's tokens")
    return Oracle(pair.session("target"), pair.session("draft"), pair.eos_ids, settings.tokens)


build = adaptive(lengths)
