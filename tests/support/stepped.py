"""Drafts token by token, by a session's other calls: what `Session.draft_chain` has to equal."""

import torch
from gates import DEVICE

from specbench.engine.sampling import draw
from specbench.engine.session import Session
from specbench.engine.types import Sampling

PROMPT = [5, 17, 3, 60, 41, 2]
# Of each round: the tokens of the draft, and how many of them are accepted. All of them, none, more than one call has.
ROUNDS = ((4, 2), (5, 5), (1, 0), (3, 1), (11, 11), (4, 0), (4, 4), (2, 1))


def token_by_token(session: Session, context: list[int], count: int, sampling: Sampling, rng: torch.Generator):
    scored = session.catch_up(context)
    drawn = []
    while True:
        token, q = draw(scored.logits[-1:], sampling, rng)
        drawn.append((token, scored.logits[-1:], q))
        if len(drawn) == count:
            tokens, rows, probs = zip(*drawn, strict=True)
            return torch.cat(tokens), torch.cat(rows), None if sampling.greedy else torch.cat(probs)
        scored = session.forward(token)


def assert_chains_are_steps(
    one: Session, other: Session, sampling: Sampling, close: dict[str, float], rounds=ROUNDS
) -> None:
    """Round after round, the first session drafts in one call and the second token by token."""
    rngs = [torch.Generator(DEVICE).manual_seed(3) for _ in "ab"]
    one.restart(PROMPT)
    other.restart(PROMPT)
    context = list(PROMPT)
    for count, accepted in rounds:
        context.append(7)
        chain = one.draft_chain(context, count, sampling, rngs[0])
        tokens, rows, probs = token_by_token(other, context, count, sampling, rngs[1])
        assert torch.equal(chain.tokens, tokens)
        assert chain.ids in (None, tokens.tolist())
        torch.testing.assert_close(chain.logits, rows, **close)
        torch.testing.assert_close(chain.probs, probs, **close)
        assert torch.equal(rngs[0].get_state(), rngs[1].get_state())
        assert one.tokens == other.tokens == context + tokens[:-1].tolist()
        context += tokens[:accepted].tolist()
