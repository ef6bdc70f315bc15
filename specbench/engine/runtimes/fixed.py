"""Work of fixed shapes on buffers, which can be captured as a CUDA graph; until then it is done launch by launch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch
from torch import Tensor

ROOM = 2048  # tokens that a new cache has room for; when it grows, its graphs are captured again
WARM_UP = 3  # runs before a capture, in which libraries choose and load their kernels


class Fixed(ABC):
    """Work of fixed shapes on buffers; it can be captured."""

    graph: torch.cuda.CUDAGraph | None = None
    outputs: tuple[Tensor | None, ...] = ()  # of the graph

    @abstractmethod
    def compute(self) -> tuple[Tensor | None, ...]:
        """Do the work, launch by launch."""

    def rewind(self) -> None:  # noqa: B027
        """Let work that fills a cache begin at its first row, in place."""

    def results(self) -> tuple[Tensor | None, ...]:
        """What the work gives for what the buffers hold."""
        if self.graph is None:
            return self.compute()
        self.graph.replay()  # the next replay overwrites the outputs
        return tuple(None if output is None else output.clone() for output in self.outputs)

    def capture(self, pool: Any) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self.outputs = self.compute()
        self.graph = graph


class Steps(Protocol):
    """Pieces of fixed work, each prepared when its key first occurs."""

    steps: dict[Any, Fixed]

    @property
    def owner(self) -> Any:
        """Whose graphs never run at the same time as these, so that all share memory."""

    def capture(self, key: Any, pool: Any) -> None:
        """Capture a step, in place."""


class FixedCall(Fixed):
    """A function of tensors; it may wait for nothing, and its work is determined by their shapes."""

    def __init__(self, work: Callable[..., Tensor], given: tuple[Tensor, ...]) -> None:
        self.work, self.given = work, tuple(torch.empty_like(one) for one in given)

    def __call__(self, *given: Tensor) -> Tensor:
        for buffer, one in zip(self.given, given, strict=True):
            buffer.copy_(one)
        (result,) = self.results()
        assert result is not None
        return result

    def compute(self) -> tuple[Tensor]:
        return (self.work(*self.given),)


class Calls:
    """A function whose calls are captured, one for each set of shapes."""

    def __init__(self, work: Callable[..., Tensor], want: Callable[["Calls", Hashable], None]) -> None:
        self.work, self.want = work, want
        self.steps: dict[Any, Fixed] = {}

    @property
    def owner(self) -> "Calls":
        return self

    @torch.inference_mode()
    def __call__(self, *given: Tensor) -> Tensor:
        key = tuple((one.shape, one.dtype) for one in given)
        if key not in self.steps:
            self.steps[key] = FixedCall(self.work, given)
            self.want(self, key)
        step = self.steps[key]
        assert isinstance(step, FixedCall)
        return step(*given)

    @torch.inference_mode()
    def capture(self, key: Any, pool: Any) -> None:
        self.steps[key].capture(pool)
