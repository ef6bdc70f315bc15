"""Trainings as a command begins them, and how one is stopped; arbitrators whose weights are drawn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench import config
from specbench.engine.models.pair import Pair
from specbench.methods import module
from specbench.methods.collaborative.cospec_arbitrator import (
    Adapter,
    new_arbitrator,
    own_parameters,
    with_backbone,
    write_arbitrator,
)
from specbench.plan import Plan
from specbench.training import train
from specbench.training.recipe import load_recipe


def stopping(at: int, function: Callable = lambda *_: None, calls: list | None = None) -> Callable:
    """The function, but stopped as by Ctrl-C at one of its calls (from 1 on); `calls` gets what each was given."""
    calls = [] if calls is None else calls

    def counted(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == at:
            raise KeyboardInterrupt
        return function(*given)

    return counted


def goes_on(train: Callable, training: type, job: Callable, monkeypatch: Any) -> None:
    """A training that is stopped in its fourth step, and begun again, writes the file of one that was not."""
    train(job("whole.safetensors"))
    monkeypatch.setattr(training, "checkpoint_seconds", 0)
    monkeypatch.setattr(training, "learn", stopping(4, training.learn))
    with pytest.raises(KeyboardInterrupt):
        train(job("stopped.safetensors"))
    assert not job("stopped.safetensors").out.exists()
    train(job("stopped.safetensors"))
    assert job("stopped.safetensors").out.read_bytes() == job("whole.safetensors").out.read_bytes()


def job_of(
    kind: str, pair: Pair, out: Path, seed: int = 0, grid=None, recipe: dict[str, Any] | None = None
) -> train.Job:
    """A training of a method with its shipped settings; `recipe` changes what its recipe says, if it has one."""
    spec = config.load_method(kind)
    plan = Plan(pair=config.load_pair("pocket"), methods=(spec,), baseline=None, suite="made", tasks=(), seed=seed)
    chosen = load_recipe(kind, [f"{key}={value}" for key, value in (recipe or {}).items()])
    settings = module(kind).Settings(**spec.values)
    return train.Job(spec, settings, pair, plan, out, recipe=chosen, grid=grid or {})


def drawn_arbitrator(path: Path, pair: Pair, **trained: Any) -> Path:
    """A file with an arbitrator over the draft whose weights are drawn at random; `trained` is added to its facts."""
    both = with_backbone(pair, "draft")
    model = new_arbitrator(both.models["draft"], Adapter(rank=4, alpha=8), seed=0)
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in own_parameters(model).items():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * (0.1 if "lora" in name else 0.3))
    write_arbitrator(path, model, both, {"rank": 4, "alpha": 8} | trained)
    return path
