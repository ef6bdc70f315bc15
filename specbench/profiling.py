"""What the command `profile` does: from a request to runs, and from runs to a profile."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specbench import ceilings, commands, environment, permissions, profile_pair, roofline
from specbench import run as engine
from specbench.config import UserError
from specbench.config import load_pair as read_pair
from specbench.console import console, progress
from specbench.models import Pair, load_pair
from specbench.profile_pair import Profile
from specbench.report.profile_view import print_profile
from specbench.report.roofline_view import ceilings_table
from specbench.report.simulate_view import numbers
from specbench.runtimes import choose
from specbench.runtimes.choose import AUTO, NAMES
from specbench.stored import StoredRun

METHODS = ("sps", "specdecpp")


def main(
    pair: str,
    suite: str | None,
    documents: int,
    repeats: int,
    methods: Sequence[str] | None,
    gamma: str,
    assignments: Sequence[str],
    out: Path | None,
    runtimes: Sequence[str] = (),
    **options: Any,
) -> int:
    """Run what a profile needs, print and write it; returns the exit code. Raises UserError for wrong requests.

    The runs are at the first of the `runtimes`, the forwards at all of them.
    """
    gammas = [int(x) for x in numbers("--gamma", gamma, whole=True)]
    if min(gammas) < 1 or len(set(gammas)) < 2:
        raise UserError(f"--gamma {gamma}: a profile needs two or more draft lengths, each at least 1")
    if AUTO in runtimes:
        raise UserError(f"--runtime {AUTO}: a profile sets runtimes side by side; name them: {', '.join(NAMES)}")
    own = "pocket" if pair == "pocket" else "smoke"
    options |= {"runtime": runtimes[0]} if runtimes else {}
    chosen = commands.plan(
        methods or METHODS, suite or own, pair, assignments, "vanilla", documents, repeats=repeats, **options
    )
    path = out or Path(f"profile-{chosen.pair.name}.json")
    _check_path(path)
    permissions.check_code(chosen)
    loaded = engine.load_models(chosen)
    further = [choose.runtime(name, loaded) for name in dict.fromkeys(runtimes) if name != loaded.runtime.name]
    known = _ceilings(loaded, anew=False)
    named = methods is not None or bool(assignments)
    fits = profile_pair.available(loaded, named, lambda line: console.print(line, style="yellow", soft_wrap=True))
    whole, alone = profile_pair.plans(chosen, gammas, fits)
    runs = profile_pair.carry_out(loaded, whole, alone, path.with_suffix(""))
    if runs is None:
        return 130
    rounds = profile_pair.FORWARDS + profile_pair.WARM
    with progress("forwards", rounds) as advance:
        forwards = profile_pair.measure_forwards(
            loaded, repeats=profile_pair.FORWARDS, advance=advance, further=further
        )
    facts = {role: roofline.facts(model) for role, model in loaded.models.items()}
    limits = roofline.table(forwards, facts, ceilings.read(known))
    _finish(replace(profile_pair.describe(*runs, forwards), ceilings=known, limits=limits), path)
    return 0


def measure_ceilings(pair: str, device: str, dtype: str) -> None:
    """Measure what the machine can do at best, in the type of a pair's target, print and keep it."""
    loaded = load_pair(read_pair(pair), device, dtype)
    if (busy := environment.load()) > 1:
        line = f"warning: {busy:.1f} processes ran at a time in the last minute; ceilings of a busy machine are too low"
        console.print(line, style="yellow", highlight=False, soft_wrap=True)
    console.print(ceilings_table(_ceilings(loaded, anew=True)))


def _ceilings(pair: Pair, anew: bool) -> dict[str, Any]:
    """What is known of the machine; it is measured if that is nothing yet, or if it shall be `anew`."""
    device, dtype = pair.device, pair.models["target"].dtype
    if not anew and (known := ceilings.known(device, dtype)):
        return known
    with progress("ceilings", ceilings.STEPS) as advance, torch.inference_mode():
        found = ceilings.measure(device, dtype, advance=advance)
    try:
        console.print(f"written: {ceilings.keep(found)}", highlight=False, soft_wrap=True)
    except OSError as error:
        line = f"the ceilings of this machine cannot be kept ({error}); set SPECBENCH_CACHE to a folder of yours"
        console.print(line, style="yellow", highlight=False, soft_wrap=True)
    return found


def read(folder: Path, out: Path | None) -> None:
    """Print the profile of a run that exists, and write it if `out` says where; the forwards are not measured."""
    if out:
        _check_path(out)
    run = StoredRun(folder)
    found = profile_pair.describe(run, None)
    known, facts = roofline.of_manifest(run)
    if known:
        limits = roofline.table(roofline.recorded(run), facts, known)
        found = replace(found, ceilings=run.manifest["ceilings"], limits=limits)
    if out:
        _finish(found, out)
    else:
        print_profile(console, found)


def _check_path(path: Path) -> None:
    if path.suffix != ".json":
        raise UserError(f"--out {path}: a profile is a .json file (its runs go into the folder of the same name)")
    if not path.absolute().parent.is_dir():
        raise UserError(f"there is no folder {path.parent}; make it, or choose another --out")


def _finish(found: Profile, path: Path) -> None:
    print_profile(console, found)
    table = profile_pair.write(found, path)
    console.print(f"written: {path} and {table.name}", highlight=False, soft_wrap=True)
