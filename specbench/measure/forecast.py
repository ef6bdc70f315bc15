"""How long a run will take: foreseen from its warm-up, then corrected by what its documents took."""

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from specbench.base.console import duration, say
from specbench.engine.clock import now
from specbench.measure.work import Work

SOON = 10.0  # seconds; a run that ends sooner is not announced


class Forecast:
    """What is left of a run's documents, in seconds of decoding.

    A document is foreseen to cost its prompt and its longest answer, at the pace of each method's warm-up. Documents
    that are done say by how much that was too much or too little, and the rest is corrected by it.
    """

    def __init__(self, work: Work, first: int) -> None:
        self._work, self._first = work, first
        self._began: float | None = None
        self._costs: list[float] = []  # foreseen seconds of all documents from `first` on

    def begin(self, samples: Iterable[dict[str, Any]]) -> None:
        """Foresee the run from the samples of its first warm-up, and say how long it will take, at most."""
        if self._began is not None:
            return
        paces: dict[str, list[tuple[float, float]]] = {}
        cached = self._work.cached(self._first % len(self._work.requests))
        for sample in samples:
            if (sample.get("prefill_seconds") or 0.0) > 0 and len(sample.get("tokens") or []) > 1:
                read = max(1, sample["prompt_tokens"] - cached)
                pace = sample["prefill_seconds"] / read, sample["decode_seconds"] / (len(sample["tokens"]) - 1)
                paces.setdefault(sample["method"], []).append(pace)
        self._began = now()
        if not paces:
            return
        reading = sum(fmean(read for read, _ in pace) for pace in paces.values())
        writing = sum(fmean(write for _, write in pace) for pace in paces.values())
        work = self._work
        for index in range(self._first, work.span.stop):
            place = index % len(work.requests)
            request, prompt = work.requests[place], work.prompts[place]
            read = len(prompt) - work.cached(place)
            self._costs.append(read * reading + request.max_new_tokens * writing)
        if (whole := sum(self._costs)) > SOON:
            documents, methods = len(self._costs), len(paces)
            say(
                f"at most about {duration(whole)} for {documents} document{'s' * (documents > 1)} by {methods} "
                f"method{'s' * (methods > 1)}, as the warm-up went; less where texts end before their limit",
                "dim",
            )

    def left(self, done: float) -> float | None:
        """Seconds that are left after the documents before index `done`, which may be a part; None if not foreseen."""
        if self._began is None or not self._costs or done <= self._first:
            return None
        whole, part = divmod(done - self._first, 1)
        foreseen = sum(self._costs[: int(whole)]) + (part * self._costs[int(whole)] if part else 0.0)
        return (now() - self._began) / foreseen * (sum(self._costs) - foreseen)
