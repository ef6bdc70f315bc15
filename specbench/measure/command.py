"""What the commands `run` and `sweep` do with a plan: a folder, the main loop in it, progress, and Ctrl-C.

What a user can have got wrong is checked before torch, transformers and lm-eval are imported, which takes seconds.
"""

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench import permissions
from specbench.base import files
from specbench.base.console import RunProgress, console, say, warn
from specbench.config import UserError
from specbench.measure.gate import check_settings, importing
from specbench.methods import check_unchanged, with_defaults
from specbench.plan import Plan
from specbench.results.lock import unused
from specbench.results.stored import StoredRun

if TYPE_CHECKING:
    from specbench.engine.models.pair import Pair
    from specbench.measure.loop import Progress
    from specbench.results.shard import Shard

LONG_NAME = 80  # characters of methods in the name of a folder


def run(plan: Plan | None, out: Path | None, resume: Path | None, shard: "Shard | None" = None) -> Path | None:
    """Carry out a plan in a new folder, or go on with the run in `resume`.

    Args:
        plan: None takes the plan of `resume`.
        out: the new folder; by default one in runs/.
        shard: only this part of the plan, in a folder in `out`; if it has begun there, it goes on.

    Returns:
        The folder if the run finished, else None.

    Raises:
        UserError: as `carry_out`.
    """
    if shard:
        out, resume = _place_of(shard, out)
    elif out and not resume and (out / "manifest.json").exists():
        raise UserError(f"{out} exists; go on with it by --resume {out}, or choose another --out")
    if resume:
        _ = StoredRun(resume).manifest  # refuses what is no run
    if given := resume or out:
        return given if carry_out(plan, given, shard=shard) else None
    assert plan is not None
    folder = default_folder(plan)
    try:
        return folder if carry_out(plan, folder) else None
    finally:
        with suppress(OSError):  # the folders are not empty
            folder.rmdir()
            folder.parent.rmdir()


def carry_out(plan: Plan | None, folder: Path, pair: "Pair | None" = None, shard: "Shard | None" = None) -> bool:
    """Carry out a plan, or a shard of it, in `folder`, or go on there, with progress on the terminal.

    Args:
        plan: None takes the plan that has begun in `folder`.
        pair: the plan's models, if they are loaded already.
        shard: which part of the plan a new folder gets; None for all of it.

    Returns:
        True if the run finished.

    Raises:
        UserError: settings are wrong, the disk is full or cannot be written, or the folder cannot be used or belongs
            to another plan.
    """
    if plan is None or (folder / "manifest.json").exists():
        begun = StoredRun(folder)
        if plan and plan != begun.plan:
            check_same(with_defaults(plan), begun.plan, folder)
        permissions.check_loading(begun.plan)
        if _is_whole(folder) and not _unanswered(begun):
            say(f"{folder} is finished: nothing is left to decode", "dim")
            return True
        if plan is None:
            permissions.check_keys(begun.plan)
        for spec in begun.plan.methods:
            check_unchanged(spec, begun.manifest["inputs"].get(spec.name, {}))
        plan = begun.plan
    else:
        if not unused(folder):
            raise UserError(f"{folder} exists; choose another --out")
        plan = with_defaults(plan)
        check_settings(plan)
    with importing():
        from specbench.measure import loop
        from specbench.measure.machine import quick_lines

    for line in quick_lines(folder, plan.device):
        warn(line)
    if plan.temperature:
        say(f"sampled: {plan.sampling.name}", "dim")
    check_disk(folder)
    with stop_requests() as stopping, RunProgress() as bar:

        def started() -> None:
            stopping.waits = True

        def report(state: "Progress") -> bool:
            bar.update(state.done, state.total, state.request.task, state.rounds, state.left)
            stopping.waits = state.done < state.total
            return not stopping.requested

        try:
            finished = loop.execute(plan, folder, report, pair, started, shard)
        except OSError as error:
            raise UserError(f"{error}; {_how_to_go_on(folder)}") from None
        except KeyboardInterrupt:
            finished = False
    if not finished:
        console.print(f"stopped{_how_far(folder)}; {_how_to_go_on(folder)}", soft_wrap=True, highlight=False)
    return finished


def check_same(plan: Plan, stored: Plan, folder: Path) -> None:
    """Raise UserError if a plan is not the one that has begun in a folder; where settings are from does not matter."""
    if _facts(plan) != _facts(stored):
        raise UserError(f"{folder} began with different settings ({_difference(stored, plan)}); give --resume alone")


def _place_of(shard: "Shard", run: Path | None) -> tuple[Path | None, Path | None]:
    """A new folder for a shard of the run in `run`, or the one in which it has begun: `out` and `resume`.

    Raises:
        UserError: no folder is named, or another shard or a whole run is in it.
    """
    if run is None:
        raise UserError("--shard needs --out: the shards of a run lie in one folder")
    if (run / "manifest.json").exists():
        raise UserError(f"{run} is a whole run; choose another --out for shards")
    folder = shard.folder(run)
    if not (folder / "manifest.json").exists():
        return folder, None
    there = StoredRun(folder).shard
    if there is None or there.shard != shard:
        raise UserError(f"{folder} holds {there.shard if there else 'a whole run'}, not {shard}; choose another --out")
    return None, folder


def _unanswered(run: StoredRun) -> bool:
    """True if a run is to ask servers again for what they failed to answer."""
    if not run.plan.servers:
        return False
    from specbench.results.unanswered import unanswered

    return unanswered(run) > 0


def _is_whole(folder: Path) -> bool:
    """True if a run is finished and its tables are sound: it is decoded no further, and no model is needed."""
    run = StoredRun(folder)
    try:
        if run.shard:
            run.rounds()
            return run.decoded
        run.scores()
    except UserError:  # it is unfinished, or damaged: what is lost is decoded again
        return False
    return True


@dataclass
class Stopping:
    """The state of Ctrl-C, SIGTERM and SIGHUP."""

    requested: bool = False  # the user pressed it once
    waits: bool = False  # the first one lets the document be finished


@contextmanager
def stop_requests() -> Iterator[Stopping]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into a request to stop; a second one, or one while nothing waits, stops at once.

    SIGHUP comes when a terminal is closed: what is printed then goes nowhere. Where it is ignored (nohup) it stays so.
    """
    stopping = Stopping()
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def request(number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            for terminal in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), terminal)
        if stopping.requested or not stopping.waits:
            raise KeyboardInterrupt
        stopping.requested = True
        console.print("finishing this document; interrupt again to stop at once", style="yellow")

    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)
    handlers = {number: signal.signal(number, request) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def default_folder(plan: Plan) -> Path:
    """Make a new folder in runs/, named after the time, the suite and the methods."""
    names = [spec.name for spec in plan.methods if spec.name != plan.against(spec.name)]
    methods = "-".join(names) or plan.baseline
    if methods and len(methods) > LONG_NAME:
        methods = f"{len(names)}-methods"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{files.safe_name(f'{plan.suite}-{methods}')}"
    for number in itertools.count(1):  # another run may have begun in this second
        folder = Path("runs") / (f"{name}-{number}" if number > 1 else name)
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def _how_far(folder: Path) -> str:
    """How many documents of a run are done, in words; empty if there is no run yet."""
    try:
        done, total = StoredRun(folder).progress
    except (UserError, OSError):
        return ""
    return f": {done} of {total} documents are done"


def _how_to_go_on(folder: Path) -> str:
    if not (folder / "manifest.json").exists():
        return "nothing was written"
    flags = permissions.flags()
    with suppress(UserError):  # the manifest may be damaged
        flags = permissions.flags_of(StoredRun(folder).plan)
    return f"to go on: specbench run --resume {folder}{flags}"


def _facts(plan: Plan) -> dict[str, Any]:
    """A plan as JSON, without where its settings are from."""
    facts = plan.model_dump(mode="json")
    for setting in (setting for method in facts["methods"] for setting in method["settings"].values()):
        del setting["source"]
    return facts


def _difference(stored: Plan, plan: Plan) -> str:
    """The first field, or the first method, in which two plans differ, in words."""
    there, here = _facts(stored), _facts(plan)
    key = next(key for key in there if there[key] != here[key])
    if key == "methods":
        there, here = ({spec.name: spec.values for spec in each.methods} for each in (stored, plan))
        name = next((name for name in {**there, **here} if there.get(name) != here.get(name)), "their order")
        return f"methods: {name} with {json.dumps(there.get(name))} there, with {json.dumps(here.get(name))} here"
    return f"{key}: {json.dumps(there[key])} there, {json.dumps(here[key])} here"


def check_disk(folder: Path) -> None:
    """Raise UserError if a folder's disk is full or cannot be written."""
    from specbench.measure.machine import disk

    finding = disk(folder)
    if finding.level == "error":
        remedy = "make room or let it be written" if (folder / "manifest.json").exists() else finding.remedy
        raise UserError(f"{finding.message}; {remedy}")
