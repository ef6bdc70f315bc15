"""What the command `profile` does: from a request to runs, and from runs to a profile."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench import commands, profile_pair
from specbench import run as engine
from specbench.config import UserError
from specbench.console import console, progress
from specbench.profile_pair import Profile
from specbench.report.profile_view import print_profile
from specbench.report.simulate_view import numbers
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
    **options: Any,
) -> int:
    """Run what a profile needs, print and write it; returns the exit code. Raises UserError for wrong requests."""
    gammas = [int(x) for x in numbers("--gamma", gamma, whole=True)]
    if min(gammas) < 1 or len(set(gammas)) < 2:
        raise UserError(f"--gamma {gamma}: a profile needs two or more draft lengths, each at least 1")
    own = "pocket" if pair == "pocket" else "smoke"
    chosen = commands.plan(
        methods or METHODS, suite or own, pair, assignments, "vanilla", documents, repeats=repeats, **options
    )
    path = out or Path(f"profile-{chosen.pair.name}.json")
    _check_path(path)
    loaded = engine.load_models(chosen)
    named = methods is not None or bool(assignments)
    fits = profile_pair.available(loaded, named, lambda line: console.print(line, style="yellow", soft_wrap=True))
    whole, alone = profile_pair.plans(chosen, gammas, fits)
    runs = profile_pair.carry_out(loaded, whole, alone, path.with_suffix(""))
    if runs is None:
        return 130
    rounds = profile_pair.FORWARDS + profile_pair.WARM
    with progress("forwards", rounds) as advance:
        forwards = profile_pair.measure_forwards(loaded, repeats=profile_pair.FORWARDS, advance=advance)
    _finish(profile_pair.describe(*runs, forwards), path)
    return 0


def read(folder: Path, out: Path | None) -> None:
    """Print the profile of a run that exists, and write it if `out` says where; the forwards are not measured."""
    if out:
        _check_path(out)
    found = profile_pair.describe(StoredRun(folder), None)
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
