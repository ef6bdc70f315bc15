"""Workers that do as a test says, at the other end of their drivers' lines."""

from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from specbench.measure.crew import NOWHERE, Worker


class Player:
    """A worker and the test's end of its line."""

    def __init__(self, number: int, log: Path = NOWHERE) -> None:
        mine, self.line = Pipe()
        self.worker = Worker(number, mine, log, lambda: "exit code -9")

    def received(self) -> Any:
        return self.line.recv() if self.line.poll() else "nothing"


@pytest.fixture
def fakes() -> list[Player]:
    return [Player(1), Player(2)]
