"""Collaborative decoding via speculation: n models propose, score and judge the tokens of one text.

CoS (arXiv 2502.01662), Algorithm 2. The committed text is followed by the pending tokens S_c. Every model j has a row
for the first |C_j| of them, and its cache holds exactly what it needs for the next one.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.accept import on_host_together
from specbench.engine.sampling import pick
from specbench.engine.session import Session
from specbench.engine.types import Combination, Sampling, Verdict


class Collaboration:
    """The state of one text. A model is given by its index; its rows are what the combination keeps of its logits."""

    def __init__(self, sessions: Sequence[Session], combination: Combination) -> None:
        self.sessions, self.combination = sessions, combination
        self._length = 0  # committed tokens; no model has read the last one
        self._stream = torch.empty(0)  # [1 + |S_c|]: the last committed token and the pending ones
        self._q: list[Tensor] = []  # for each pending token the distribution [1, V] it was drawn from; empty if greedy
        self._proposers: list[int] = []
        self._rows: list[Tensor | None] = []  # [|C_j|, V] of each model; None: no rows

    @torch.inference_mode()
    def begin(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> int:
        """All models read the prompt; returns the first token, drawn from r."""
        self.sampling, self.rng = sampling, rng
        rows = [self.combination.rows(session.restart(prompt).logits, sampling) for session in self.sessions]
        token = self.combination.choose(rows, sampling, rng)
        self._clear(len(prompt) + 1, token)
        return int(token)

    @property
    def pending(self) -> int:
        """|S_c|"""
        return self._stream.shape[0] - 1

    @property
    def cached(self) -> list[int]:
        """|C_j| of every model: the number of pending tokens that it has a row for."""
        return [row.shape[0] if row is not None else 0 for row in self._rows]

    @torch.inference_mode()
    def propose(self, model: int) -> None:
        """Score the unread part of S_c and append a token that the model proposes, by one forward (Score; Propose)."""
        rows = self._read(model, self._stream[self.cached[model] :])
        last = rows[-1:]
        if self.sampling.greedy:
            token = last.argmax(-1)
        else:
            q = self.combination.proposal(last, self.sampling)
            token = pick(q, self.rng)
            self._q.append(q)
        self._stream = torch.cat([self._stream, token])
        self._proposers.append(model)

    @torch.inference_mode()
    def score(self, model: int, bonus: bool = False) -> None:
        """Score S_c by one forward, without a proposal; with `bonus` also the position after its last token."""
        self._read(model, self._stream[self.cached[model] : None if bonus else -1])

    def forget(self, model: int) -> None:
        """Drop a model's rows, in place, so that it must score S_c again."""
        self.sessions[model].truncate(self._length - 1)
        self._rows[model] = None

    @torch.inference_mode()
    def judge(self) -> Verdict | None:
        """Judge the leading tokens that all models have scored, in place; None if there are none.

        A token that was drawn from q passes with probability min(1, r/q) (Eq. 6), at T = 0 if it is the argmax of r.
        The first that does not pass is replaced by a draw from norm((r - q)₊), and all later tokens are dropped. If
        every pending token passed and all models have a row after them too, a bonus token is drawn from r there.
        """
        scored = min(self.cached)
        if not scored:
            return None
        count = min(scored, self.pending)
        r = self.combination.combined([row[:scored] for row in self._rows if row is not None], self.sampling)
        tokens = self._stream[1:]
        index = tokens[:count, None]
        highest, targets = r[:count].max(-1)
        r_drafted = r[:count].gather(-1, index)[:, 0]
        if self.sampling.greedy:
            emit = targets if scored == count else r.argmax(-1)
            columns = [emit[:count] == tokens[:count]]
            ratios = (r_drafted - highest).exp() if self.combination.level == "logits" else r_drafted / highest
        else:
            q = torch.cat(self._q[:count])
            both = torch.minimum(q, r[:count])
            left = r[:count] - both
            left = torch.where(left.sum(-1, keepdim=True) > 0, left, r[:count])  # q = r, up to rounding
            emit = pick(left if scored == count else torch.cat([left, r[count:]]), self.rng)
            q_drafted = q.gather(-1, index)[:, 0]
            u = torch.rand(count, generator=self.rng, device=r.device, dtype=r.dtype)
            columns = [u * q_drafted < r_drafted, both.sum(-1), q_drafted]
            ratios = r_drafted / highest
        drafted, emitted, preferred, ratio, passed, *others = on_host_together(tokens, emit, targets, ratios, *columns)

        accepted = next((i for i, passes in enumerate(passed) if not passes), count)
        whole = accepted == count == len(emitted)  # no token is emitted, and later pending tokens stay pending
        judged = count if whole else len(drafted)
        unscored = judged - count
        verdict = Verdict(
            path=tuple(range(accepted)),
            token=None if whole else emitted[accepted],
            drafted=drafted[:judged],
            targets=preferred + [-1] * unscored,
            ratios=ratio + [math.nan] * unscored,
            overlaps=others[0] + [math.nan] * unscored if others else None,
            confidences=others[1] + [math.nan] * unscored if others else None,
            proposers=self._proposers[:judged],
        )
        if whole:
            self._commit(count)
        else:
            self._clear(self._length + accepted + 1, emit[accepted : accepted + 1])
        return verdict

    def _read(self, model: int, tokens: Tensor) -> Tensor:
        """Feed tokens to a model and keep their rows, which are returned."""
        rows = self.combination.rows(self.sessions[model].forward(tokens).logits, self.sampling)
        earlier = self._rows[model]
        self._rows[model] = rows if earlier is None else torch.cat([earlier, rows])
        return rows

    def _commit(self, count: int) -> None:
        """Commit the first `count` pending tokens, whose rows are no longer needed, in place."""
        self._length += count
        self._stream = self._stream[count:]
        self._q, self._proposers = self._q[count:], self._proposers[count:]
        self._rows = [row[count:] if row is not None and row.shape[0] > count else None for row in self._rows]

    def _clear(self, length: int, last: Tensor) -> None:
        """Set the committed length; `last` [1] is its last token, which no model has read. Nothing is pending then."""
        self._length = length
        self._stream = last
        self._q, self._proposers, self._rows = [], [], [None] * len(self.sessions)
        for session in self.sessions:
            if len(session) > length - 1:
                session.truncate(length - 1)
