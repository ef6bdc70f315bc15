"""`specbench profile`: make a profile from new runs and timed forwards, or from an existing run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from specbench.analysis import roofline
from specbench.base.console import progress, warn
from specbench.config import UserError
from specbench.engine.models import cost
from specbench.engine.models.load import OPENVINO
from specbench.engine.runtimes import choose
from specbench.engine.runtimes.choose import AUTO, NAMES
from specbench.measure import prepare
from specbench.measure.gate import check_code
from specbench.measure.machine import quick_lines
from specbench.plan import Plan
from specbench.results import ceilings
from specbench.results.stored import StoredRun
from specbench.studies import profile_batches, profile_pair
from specbench.studies.ceilings import machine_ceilings
from specbench.studies.profile_pair import Profile


def check(gammas: Sequence[int], runtimes: Sequence[str]) -> None:
    """Raise UserError for draft lengths that allow no fit, and for `auto` among the runtimes."""
    if min(gammas) < 1 or len(set(gammas)) < 2:
        lengths = ",".join(map(str, gammas))
        raise UserError(f"--gamma {lengths}: a profile needs two or more draft lengths, each at least 1")
    if AUTO in runtimes:
        raise UserError(f"--runtime {AUTO}: a profile sets runtimes side by side; name them: {', '.join(NAMES)}")


def carry_out(
    plan: Plan, gammas: Sequence[int], runtimes: Sequence[str], named: bool, folder: Path, sizes: Sequence[int] = ()
) -> Profile | None:
    """Do the runs of a profile in `folder`, and time the pair's forwards; None if the user stopped it.

    The runs use the plan's runtime, the forwards all of the `runtimes`, those of batches of `sizes` the first. Unless
    the user `named` the methods, those that cannot be built are left out. Raises UserError as the functions it calls.
    """
    check_code(plan)
    if OPENVINO in runtimes and len({*runtimes}) > 1 and any(model.weights for model in plan.pair.models.values()):
        raise UserError(f"{OPENVINO} has weights in fewer bits of its own, and other runtimes theirs: profile it alone")
    for line in quick_lines(folder, plan.device):
        warn(line)
    pair = prepare.load_models(plan)
    further = [choose.runtime(name, pair) for name in dict.fromkeys(runtimes) if name != pair.runtime.name]
    known = machine_ceilings(pair)
    whole, alone = profile_pair.plans(plan, gammas, profile_pair.available(pair, named, warn))
    runs = profile_pair.carry_out(pair, whole, alone, folder)
    if runs is None:
        return None
    with progress("forwards", profile_pair.FORWARDS + profile_pair.WARM) as advance:
        forwards = profile_pair.measure_forwards(pair, repeats=profile_pair.FORWARDS, advance=advance, further=further)
    batches = pd.DataFrame()
    if sizes:
        with progress("forwards of batches", profile_pair.FORWARDS + profile_batches.WARM) as advance:
            batches = profile_batches.measure_batches(pair, sizes, profile_pair.FORWARDS, advance)
    facts = {role: cost.facts(model) for role, model in pair.models.items()}
    limits = roofline.table(forwards, facts, ceilings.read(known)) if known else pd.DataFrame()
    return replace(profile_pair.describe(*runs, forwards), ceilings=known, limits=limits, batches=batches)


def read(folder: Path) -> Profile:
    """The profile of an existing run. No forwards are timed, and the limits are those of the run's ceilings."""
    run = StoredRun(folder)
    profile = profile_pair.describe(run, None)
    known, facts = roofline.of_manifest(run)
    if not known:
        return profile
    limits = roofline.table(roofline.recorded(run), facts, known)
    return replace(profile, ceilings=run.manifest["ceilings"], limits=limits)
