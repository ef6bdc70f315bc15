"""The draft lengths and thresholds that a simulation tries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench import config
from specbench.analysis.drafts import decoding
from specbench.analysis.replay import Rule
from specbench.config import MethodSpec, UserError
from specbench.config import Setting as Value
from specbench.methods import settings_of
from specbench.results.stored import StoredRun

ORACLE = "oracle"
BY_THRESHOLD = ("specdecpp", "confidence", "cumulative", "entropy")  # length methods that stop at a threshold
GAMMAS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
NATS = (0.5, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Candidate:
    """A draft length or a threshold to try."""

    name: str  # gamma=4, threshold=0.7
    rule: Rule
    measured: str | None  # the method of the run that has exactly this setting


def policy(run: StoredRun, spec: MethodSpec) -> MethodSpec | None:
    """The length method that made a method's drafts, if it stops at a threshold; else None.

    Raises UserError for the oracle, whose drafts end where the next token would be rejected.
    """
    length = run.length_policy(spec)
    if length is not None and length.method == ORACLE:
        raise UserError(f"{spec.name} never tested a token that would be rejected; choose another --method")
    if length is None or length.method not in BY_THRESHOLD:
        return None
    if length is spec:
        return spec
    values = settings_of(spec, run.folder)
    bounds = {"longest": values["gamma"], "stop_at_eos": values["stop_at_eos"] or length.values["stop_at_eos"]}
    return config.override(length, {key: Value(value=value, source=spec.name) for key, value in bounds.items()})


def settings(
    run: StoredRun, spec: MethodSpec, gammas: Sequence[int], thresholds: Sequence[float], shortest: int | None
) -> list[Candidate]:
    """The settings to try. Raises UserError for impossible values, and for thresholds without recorded predictions."""
    length = policy(run, spec)
    if bad := [gamma for gamma in gammas if gamma < 1]:
        raise UserError(f"--gamma {bad[0]}: a draft has at least 1 token")
    entropy = length is not None and length.method == "entropy"
    if bad_threshold := [t for t in thresholds if not (t > 0 and (t < 1 or entropy))]:
        bounds = "above 0 nats" if entropy else "between 0 and 1"
        raise UserError(f"--threshold {bad_threshold[0]:g}: a threshold lies {bounds}")
    predicted = length is not None and _predicted(run, spec.name)
    if thresholds and not predicted:
        raise UserError(
            f"the drafts of {spec.name} have no predictions; a run with them: specbench run --method specdecpp "
            "--set specdecpp.shortest=20 --set specdecpp.longest=20"
        )
    if not gammas and not thresholds:
        gammas = GAMMAS
        thresholds = (NATS if entropy else THRESHOLDS) if predicted else ()
    chosen = [_gamma_setting(run, spec, gamma) for gamma in gammas]
    if length is not None:
        chosen += [_threshold_setting(run, length, threshold, shortest) for threshold in thresholds]
    return chosen


def _gamma_setting(run: StoredRun, spec: MethodSpec, gamma: int) -> Candidate:
    base = spec if "gamma" in spec.values else config.load_method("sps")
    values = {**base.values, "gamma": gamma} | ({"length": "fixed"} if "length" in base.values else {})
    rule = Rule("fixed", gamma, stop_at_eos=bool(values.get("stop_at_eos", False)))
    return Candidate(f"gamma={gamma}", rule, _counterpart(run, base.method, values))


def _threshold_setting(run: StoredRun, length: MethodSpec, threshold: float, shortest: int | None) -> Candidate:
    values = settings_of(length, run.folder)
    # A run at a fixed length was recorded to be replayed.
    if shortest is None and values["shortest"] == values["longest"]:
        shortest = config.load_method(length.method).values["shortest"]
    values |= {"threshold": threshold, "shortest": shortest or values["shortest"]}
    if values["shortest"] > values["longest"]:
        raise UserError(f"--shortest {values['shortest']}: these drafts have at most {values['longest']} tokens")
    rule = Rule(length.method, values["longest"], values["shortest"], threshold, bool(values["stop_at_eos"]))
    return Candidate(f"threshold={threshold:g}", rule, _counterpart(run, length.method, values))


def _counterpart(run: StoredRun, method: str, values: dict[str, Any]) -> str | None:
    """The method of the run with exactly these settings; settings that its version did not have count as equal."""
    for spec in run.plan.methods:
        if spec.method == method and all(spec.values.get(key, value) == value for key, value in values.items()):
            return spec.name
    return None


def _predicted(run: StoredRun, method: str) -> bool:
    predictions = decoding(run, method, ["predictions"]).column("predictions")
    return bool(predictions.null_count < len(predictions))
