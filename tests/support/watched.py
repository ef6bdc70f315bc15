"""Watches that note what they see: forwards of sessions, and the calls by which the host reads tensors."""

import torch

from specbench.engine.session import Unwatched

READS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero")


class Told(Unwatched):
    """Keeps (role, width, context) of every forward, and the passes of a call of several."""

    def __init__(self) -> None:
        self.forwards: list[tuple[str | int, ...]] = []

    def forward(self, *what):
        self.forwards.append(what)
        return super().forward(*what)


def reads_of_tensors(monkeypatch) -> list[str]:
    """The names of the calls, from now on, that ask a tensor for its values; on a GPU the host would wait for each."""
    results: list[str] = []
    for name in READS:
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, *a, _n=name, _r=real, **k: results.append(_n) or _r(self, *a, **k)
        )
    return results
