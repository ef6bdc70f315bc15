"""Draft model and target work at the same time. Lossless.

PEARL (arXiv 2408.11850). While the target reads the tokens that wait to be verified, the draft model drafts those after
them. The first drafted token is verified at once, by the logits after the waiting ones (pre-verify); the others wait
for the next round (post-verify). So a draft grows until a token is rejected.

Here both run in turn: texts and counts are PEARL's, seconds are not. `analysis.overlap` models those.
"""

from collections.abc import Iterator

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.engine.accept import exact
from specbench.engine.drafters import Drafter, ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import draw
from specbench.engine.session import Session
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Stateless, Verdict, Watch


class Settings(Base):
    gamma: int = Field(ge=1, description="tokens that the draft model drafts while the target reads once (γ)")


class Pearl(Stateless):
    """Each round the target verifies the waiting tokens and the first one that follows them; there is no bonus token.

    A rejection drops all that was drafted after it. The tokens that were being drafted then are in no verdict, as the
    target never read them; their forwards are counted.
    """

    penalised = True
    lossless = True

    def __init__(self, target: Session, drafter: Drafter, gamma: int) -> None:
        self.target, self.drafter, self.gamma = target, drafter, gamma
        self.reach = 2 * gamma

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        target, drafter = self.target, self.drafter
        drafter.begin(prompt)
        token, _ = draw(target.restart(prompt).logits[-1:], sampling, rng)
        context = [*prompt, int(token)]
        yield Round(context[-1:])
        waiting: Draft | None = None
        while True:
            unverified = [] if waiting is None else waiting.tokens.tolist()
            begun = drafter.propose([*context, *unverified], self.gamma, sampling, rng)
            scored = target.forward([context[-1], *unverified])
            first = part(begun, slice(1))
            verdict = without_bonus(first if waiting is None else joined(waiting, first), scored, sampling, rng)
            target.truncate(len(context) + min(verdict.accepted, len(unverified)))
            context += verdict.committed
            waiting = part(begun, slice(1, None)) if verdict.token is None else None
            yield Round(verdict.committed, verdict)


def part(draft: Draft, which: slice) -> Draft:
    """Some tokens of a chain."""
    return Draft(draft.tokens[which], None if draft.probs is None else draft.probs[which])


def joined(first: Draft, then: Draft) -> Draft:
    """Two chains as one; both were drawn, or both are greedy."""
    tokens = torch.cat([first.tokens, then.tokens])
    if first.probs is None or then.probs is None:
        return Draft(tokens, None)
    return Draft(tokens, torch.cat([first.probs, then.probs]))


def without_bonus(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
    """The exact rule for logits [K, V] of K drafted tokens: nothing follows a draft that is accepted whole."""
    logits = torch.cat([scored.logits, scored.logits[-1:]])  # the last row stands for the bonus, which is not used
    verdict = exact(draft, Scored(logits), sampling, rng)
    return verdict if verdict.accepted < len(verdict.drafted) else verdict._replace(token=None)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return Pearl(pair.session("target", watch), ModelDrafter(pair.session("draft", watch)), settings.gamma)
