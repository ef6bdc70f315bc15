"""Collaborative decoding via speculation: n models propose, score and judge the tokens of one text.

CoS (arXiv 2502.01662), Algorithm 2. Behind the committed text stand the pending tokens S_c; every model j has a row for
the first |C_j| of them, and its cache holds all that it needs for the next one, no more.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.decoding.combine import Combination
from specbench.decoding.sampling import pick
from specbench.decoding.session import Session
from specbench.decoding.types import Sampling, Verdict


class Collaboration:
    """The state of one text. Models are named by their index; their rows are what the combination keeps of logits."""

    def __init__(self, sessions: Sequence[Session], combination: Combination) -> None:
        self.sessions, self.combination = sessions, combination
        self._length = 0  # committed tokens; no model has read the last one
        self._stream = torch.empty(0)  # [1 + |S_c|]: the last committed token and the pending ones
        self._q: list[Tensor] = []  # [1, V] for each pending token: what it was drawn from; none when greedy
        self._proposers: list[int] = []
        self._rows: list[Tensor | None] = []  # [|C_j|, V] of each model; None: of no token

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
        """|C_j| of every model: for how many of the pending tokens it has a row."""
        return [row.shape[0] if row is not None else 0 for row in self._rows]

    @torch.inference_mode()
    def propose(self, model: int) -> None:
        """Score what the model has not read of S_c, and append a token of its own, by one forward (Score; Propose)."""
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
    def score(self, model: int, behind: bool = False) -> None:
        """Score S_c by one forward and propose nothing; with `behind` also what follows its last token."""
        self._read(model, self._stream[self.cached[model] : None if behind else -1])

    def forget(self, model: int) -> None:
        """Drop a model's rows, so that it scores S_c anew, in place."""
        self.sessions[model].truncate(self._length - 1)
        self._rows[model] = None

    @torch.inference_mode()
    def judge(self) -> Verdict | None:
        """Judge the leading tokens that all models have scored, in place; None if there are none.

        A token of proposer q passes with probability min(1, r/q) (Eq. 6), at T = 0 if it is the argmax of r. The first
        that does not is replaced by a draw from norm((r - q)₊), and all behind it is cleared. Where every pending token
        passed and all models have a row behind them too, a bonus token is drawn from there.
        """
        scored = min(self.cached)
        if not scored:
            return None
        count = min(scored, self.pending)
        r = self.combination.combined([row[:scored] for row in self._rows if row is not None], self.sampling)
        tokens = self._stream[1:]
        at = tokens[:count, None]
        highest, targets = r[:count].max(-1)
        of_r = r[:count].gather(-1, at)[:, 0]
        if self.sampling.greedy:
            emit = targets if scored == count else r.argmax(-1)
            columns = [emit[:count] == tokens[:count]]
            ratios = (of_r - highest).exp() if self.combination.level == "logits" else of_r / highest
        else:
            q = torch.cat(self._q[:count])
            both = torch.minimum(q, r[:count])
            left = r[:count] - both
            left = torch.where(left.sum(-1, keepdim=True) > 0, left, r[:count])  # q = r, up to rounding
            emit = pick(left if scored == count else torch.cat([left, r[count:]]), self.rng)
            of_q = q.gather(-1, at)[:, 0]
            u = torch.rand(count, generator=self.rng, device=r.device, dtype=r.dtype)
            columns = [u * of_q < of_r, both.sum(-1), of_q]
            ratios = of_r / highest
        # One copy to the host; ids are exact in float64.
        host = torch.cat([x.double() for x in (tokens, emit, targets, ratios, *columns)]).tolist()
        drafted, host = [int(x) for x in host[: self.pending]], host[self.pending :]
        emitted, host = [int(x) for x in host[: len(emit)]], host[len(emit) :]
        preferred, ratio, passed, *others = (host[i : i + count] for i in range(0, len(host), count))

        accepted = next((i for i, one in enumerate(passed) if not one), count)
        whole = accepted == count == len(emitted)  # nothing follows; what is pending behind stays so
        judged = count if whole else len(drafted)
        unscored = judged - count
        verdict = Verdict(
            path=tuple(range(accepted)),
            token=None if whole else emitted[accepted],
            drafted=drafted[:judged],
            targets=[int(x) for x in preferred] + [-1] * unscored,
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
        rows = self.combination.rows(self.sessions[model].forward(tokens).logits, self.sampling)
        known = self._rows[model]
        self._rows[model] = rows if known is None else torch.cat([known, rows])
        return rows

    def _commit(self, count: int) -> None:
        """The first `count` pending tokens stand; their rows are not needed any more."""
        self._length += count
        self._stream = self._stream[count:]
        self._q, self._proposers = self._q[count:], self._proposers[count:]
        self._rows = [row[count:] if row is not None and row.shape[0] > count else None for row in self._rows]

    def _clear(self, length: int, last: Tensor) -> None:
        """The committed text has `length` tokens, the last of which no model has read; nothing is pending."""
        self._length = length
        self._stream = last
        self._q, self._proposers, self._rows = [], [], [None] * len(self.sessions)
        for session in self.sessions:
            if len(session) > length - 1:
                session.truncate(length - 1)
