"""Measure speculative decoding: every method on one engine, accuracy and speed from the same generations.

The Python API. Nothing heavy is imported before it is used.

    import specbench

    run = specbench.run(["sps", "csd"], suite="math", limit=20)
    run.summary[["task", "method", "accuracy", "speedup_decode"]]
    run.samples, run.rounds, run.scores, run.manifest

    specbench.compare(["runs/first", "runs/second"])
    specbench.plots.draw("depth", run, out="depth.svg")
    specbench.decode("Tom has 3 apples and buys 4 more.", method="csd").text

What is wrong with an input is a `UserError` of one line. Models and tasks that bring their own code run only within
`with specbench.permitted(trust_remote_code=True): ...`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specbench import plots as plots
    from specbench.api import Run as Run
    from specbench.api import compare as compare
    from specbench.api import decode as decode
    from specbench.api import import_run as import_run
    from specbench.api import load_pair as load_pair
    from specbench.api import load_run as load_run
    from specbench.api import run as run
    from specbench.api import run_plan as run_plan
    from specbench.base.errors import UserError as UserError
    from specbench.permissions import permitted as permitted
    from specbench.plan import Plan as Plan
    from specbench.plan import resolve_plan as resolve_plan

    __version__: str

_HOMES = {
    **dict.fromkeys(
        ("Run", "compare", "decode", "import_run", "load_pair", "load_run", "run", "run_plan"), "specbench.api"
    ),
    **dict.fromkeys(("Plan", "resolve_plan"), "specbench.plan"),
    "UserError": "specbench.base.errors",
    "permitted": "specbench.permissions",
}

__all__ = ["__version__", "plots", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    """A name of the API, imported when it is first used (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("specbench-harness")
    elif name == "plots":
        return import_module("specbench.plots")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'specbench' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
