"""What a training says of itself: how long it takes, its curve on held-out answers, and what that advises."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from specbench.training import heads
from specbench.training.answered import Answered
from specbench.training.curve import Curve
from specbench.training.documents import hold_out
from specbench.training.heads import AnsweredTraining, Lessons, learn_answers

RECIPE = SimpleNamespace(batch=2, epochs=5, learning_rate=0.1, weight_decay=0.0)
ANSWERS = [Answered(f"document-{number}", [number, number + 1, number + 2], 1) for number in range(10)]


class Line(AnsweredTraining):
    """Learns a line through answers; each batch moves it otherwise."""

    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            head = nn.Linear(3, 1)
        super().__init__(SimpleNamespace(device=torch.device("cpu")), head, ANSWERS, RECIPE, 0)  # type: ignore[arg-type]

    def learn(self, batch):
        inputs = torch.tensor([answer.tokens for answer in batch]).float()
        loss = (self.head(inputs) - inputs.sum(1, keepdim=True)).abs().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def agreement(self, answered):
        return [0.5]


def learned(folder, training):
    job = SimpleNamespace(out=folder / "line.safetensors")
    made = learn_answers(job, training, Lessons([], folder, ANSWERS, ANSWERS[:2], {"seed": 0}))  # type: ignore[arg-type]
    return training, made


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ([0.1, 0.2, 0.3, 0.4], "it was still rising"),
        ([0.1, 0.4, 0.395, 0.405], "it had stopped rising"),
        ([0.1, 0.4, 0.3, 0.2], "it was best after step 20, and then learned its answers by heart"),
        ([0.0, 0.003, 0.0, 0.001], "it has hardly begun to learn in 40 steps: take more of them (--recipe epochs=N"),
        ([0.1, 0.4], ""),
    ],
)
def test_what_a_curve_advises(values, advice):
    """Of 2,500 places: differences of up to two points are none."""
    curve = Curve(40, lambda: 0.0, 2500, {10 * (i + 1): value for i, value in enumerate(values)})
    assert curve.advice().startswith(advice) and bool(curve.advice()) == bool(advice)
    for known, lacks in ((0.05, True), (0.03, False)):
        curve.learned = {40: values[-1] + known}
        assert ("documents are what it lacks most" in curve.advice()) == (
            lacks and advice.startswith(("it was s", "it had"))
        )
    few = Curve(40, lambda: 0.0, 4, dict(curve.points))  # where half of the choices are none
    assert few.advice().startswith(advice if max(values) < 0.1 else "it had stopped rising" if advice else "")


def test_a_training_is_looked_at_now_and_then_and_its_file_has_the_curve(tmp_path, capsys, monkeypatch):
    shares = iter(range(1, 99))
    monkeypatch.setattr(Line, "agreement", lambda self, answered: [next(shares) / 100, 0.9])
    training, made = learned(tmp_path, Line())
    assert training.steps == 25 == training.step
    steps = [4, 8, 12, 16, 20, 24, 25]
    assert made["held_out_curve"] == [[step, round(0.01 + 0.02 * i, 2)] for i, step in enumerate(steps)]
    assert made["learned_curve"] == [[step, round(0.02 + 0.02 * i, 2)] for i, step in enumerate(steps)]
    said = " ".join(capsys.readouterr().out.split())
    assert "for 25 steps of 2 answers, as the first ones went" in said
    assert "learning from 10 answers with 10 places to draft from; held out: 2 answers with 2" in said
    assert said.index("as the first ones went") < said.index("step 4 of 25: held out, 1.0% of the choices are")
    assert "on answers it learns from, 2.0%" in said
    assert "held out by step: 4 1.0%, 8 3.0%," in said


def test_finding_out_how_long_it_takes_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "told").mkdir()
    (tmp_path / "untold").mkdir()
    told, _ = learned(tmp_path / "told", Line())
    monkeypatch.setattr(heads, "FORECAST", 1000)
    untold, _ = learned(tmp_path / "untold", Line())
    assert torch.equal(told.head.weight, untold.head.weight) and not torch.equal(told.head.weight, Line().head.weight)


def test_a_training_that_is_stopped_shows_its_curve_and_goes_on_with_it(tmp_path, capsys, monkeypatch):
    """Each step is kept. The curve of the second call has the points of the first, and the weights are those of one."""
    monkeypatch.setattr(Line, "checkpoint_seconds", -1.0)
    whole, made = learned(tmp_path, Line())
    (tmp_path / "line.checkpoint.pt").unlink()
    learn, steps = Line.learn, []

    def stopped(self, batch):
        steps.append(batch)
        if len(steps) == 15:  # three of them are the trial's
            raise KeyboardInterrupt
        return learn(self, batch)

    monkeypatch.setattr(Line, "learn", stopped)
    capsys.readouterr()
    with pytest.raises(KeyboardInterrupt):
        learned(tmp_path, Line())
    said = " ".join(capsys.readouterr().out.split())
    assert "stopped after step 11 of 25; the same command goes on held out by step: 4 50.0%, 8 50.0%" in said
    monkeypatch.setattr(Line, "learn", learn)
    again, goes_on = learned(tmp_path, Line())
    assert torch.equal(again.head.weight, whole.head.weight) and goes_on == made


@pytest.mark.parametrize(
    ("documents", "one_in", "held"), [(48, 40, 8), (12, 40, 3), (6, 40, 1), (2, 40, 1), (400, 40, 10), (48, 5, 9)]
)
def test_more_than_one_of_few_documents_is_held_out(documents, one_in, held):
    names = [f"document-{number}" for number in range(documents)]
    learned, kept = hold_out(names, 0, one_in, 8)
    assert len(kept) == held and sorted([*learned, *kept]) == sorted(names)
