"""The training loop, by a toy whose every step depends on all before it."""

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from specbench.base.hashes import stable_seed
from specbench.config import UserError
from specbench.training import loop
from specbench.training.collected import half
from specbench.training.loop import Epochs, cosine
from specbench.training.recipe import parse_grid


class Toy(Epochs[list[int]]):
    """Learns ten numbers, three a step: four steps an epoch."""

    state_keys = ("step", "value")

    def __init__(self, seed: int = 0, stop_at: int = -1) -> None:
        super().__init__(10, 3, 2)
        self.seed, self.stop_at, self.value = seed, stop_at, 0.0
        self.events: list[str] = []

    def batches(self, epoch: int) -> list[list[int]]:
        order = random.Random(stable_seed(self.seed, "epoch", epoch)).sample(range(10), 10)
        return [order[i : i + 3] for i in range(0, 10, 3)]

    def learn(self, batch: list[int]) -> float:
        if self.step == self.stop_at:
            raise KeyboardInterrupt
        self.value = self.value * 0.5 + sum(batch) * batch[0]
        return self.value

    def state(self) -> dict[str, float]:
        return {"step": self.step, "value": self.value}

    def restore(self, state) -> None:
        self.step, self.value = state["step"], state["value"]
        self.advance(self.step)

    def begin(self) -> None:
        self.events.append("begin")

    def after_checkpoint(self) -> None:
        self.events.append(f"saved {self.step}")


@pytest.mark.parametrize("stop_at", range(8))
def test_a_stopped_training_goes_on_where_its_checkpoint_stands(tmp_path: Path, stop_at: int) -> None:
    whole, stopped, resumed = Toy(), Toy(stop_at=stop_at), Toy()
    whole.run(tmp_path / "whole.pt", {})
    assert whole.events == ["begin", *(f"saved {step}" for step in range(1, 9))]
    with pytest.raises(KeyboardInterrupt):
        stopped.run(tmp_path / "stopped.pt", {})
    counts: list[int] = []
    resumed.run(tmp_path / "stopped.pt", {}, counts.append)
    other = Toy(seed=1)
    other.run(tmp_path / "other.pt", {})
    assert resumed.value == whole.value != other.value
    assert sum(counts) == 8 and (resumed.events[0] == "begin") == (stop_at == 0)


def test_checkpoints_come_no_more_often_than_asked_for(tmp_path: Path) -> None:
    toy = Toy()
    toy.checkpoint_seconds = 1000.0
    toy.run(tmp_path / "c.pt", {})
    assert toy.events == ["begin"] and not (tmp_path / "c.pt").exists() and toy.done


def test_no_checkpoint_is_written_in_the_middle_of_what_cannot_be_resumed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Toy, "complete", property(lambda self: self.step % self.epoch_steps == 0))
    toy = Toy()
    toy.run(tmp_path / "c.pt", {})
    assert toy.events == ["begin", "saved 4", "saved 8"]


def test_a_checkpoint_of_other_facts_and_a_loss_that_is_not_finite_are_refused(tmp_path: Path, monkeypatch) -> None:
    Toy().run(tmp_path / "c.pt", {"seed": 0})
    with pytest.raises(UserError, match="begun with different seed"):
        Toy(seed=1).run(tmp_path / "c.pt", {"seed": 1})
    with pytest.raises(UserError, match="begun with different seed"):
        Toy().run(tmp_path / "c.pt", {})  # a fact that no longer counts
    with pytest.raises(UserError, match="begun with different epochs"):
        Toy().run(tmp_path / "c.pt", {"seed": 0, "epochs": 2})
    monkeypatch.setattr(Toy, "learn", lambda self, batch: math.inf)
    with pytest.raises(UserError, match="the loss is inf at step 0; try a smaller learning_rate"):
        Toy().run(tmp_path / "d.pt", {})


class OnGpu(torch.Tensor):
    is_cuda = True


def test_losses_on_a_gpu_are_looked_at_now_and_then_and_before_a_checkpoint(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "WATCHED", 3)
    seen: list[int] = []

    def learn(self: Toy, batch: list[int]) -> torch.Tensor:
        seen.append(self.step)
        return torch.full((), math.nan if self.step == 4 else 1.0).as_subclass(OnGpu)

    monkeypatch.setattr(Toy, "learn", learn)
    for between, last in ((1000.0, 5), (-1.0, 4)):
        toy, path = Toy(), tmp_path / f"{between}.pt"
        toy.checkpoint_seconds = between
        with pytest.raises(UserError, match="the loss is nan at step 4"):
            toy.run(path, {})
        assert seen[-1] == last and path.exists() == (between < 0)


def test_the_rate_rises_in_a_line_and_falls_as_a_cosine() -> None:
    assert [cosine(step, 10, 2) for step in range(3)] == [0.5, 1.0, 1.0]
    assert cosine(6, 10, 2) == pytest.approx(0.5) and cosine(10, 10, 2) == pytest.approx(0)
    assert cosine(0, 1, 0) == 1.0


def test_stored_states_are_finite() -> None:
    """Half precision ends at 65504: larger values stay the largest, instead of infinities that no head can learn of."""
    stored = half(torch.tensor([[1e6, -1e6, 2.5]]))
    assert stored.dtype == np.float16 and stored.tolist() == [[65504.0, -65504.0, 2.5]]


def test_a_grid_may_be_given_in_parts() -> None:
    result = parse_grid(["depth=1,2", "weight=6", "depth=2,3"])
    assert result == {"depth": [1, 2, 3], "weight": [6]}
