"""`specbench analyze counterfactual`: play branches of a run's mismatches, and keep them in a folder as they come."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specbench.base import files, parquet
from specbench.base.console import PlainConsole, console, progress
from specbench.base.folder import Folder, FolderFile
from specbench.base.untrusted import read_object
from specbench.config import MethodSpec, UserError
from specbench.results import records
from specbench.results.stored import StoredRun
from specbench_extras.counterfactual.analysis import (
    STATE,
    Counterfactual,
    Played,
    State,
    counterfactual,
    draw_states,
    estimated_seconds,
    method_of,
    reached_states,
)
from specbench_extras.counterfactual.branches import BRANCHES, Player


def carry_out(
    run: StoredRun, method: str | None, number: int, seed: int, batch: int, folder: Path | None, aside: bool
) -> Counterfactual:
    """Play `number` states of a run, and compare their branches.

    Played branches are kept in `folder` (by default within the run's folder), and the same call continues from there.
    Before anything is decoded, a line says what it will cost; `aside` sends it to stderr, as stdout is for programs.
    Raises UserError as `method_of`, `reached_states`, `Player` and `Store` do, and if the user stops it.
    """
    spec = method_of(run, method)
    run.scores()  # only a finished run
    states = reached_states(run, spec.name)
    player = Player(run, spec, seed)
    checkable = player.checkable(states)
    store = Store(_place(run, spec) if folder is None else folder, facts_of(run, spec, seed))
    chosen = draw_states(run, spec.name, states[states.task.isin(checkable)], number, seed)
    played = store.keys()
    left = [state for state in chosen if state.key not in played]
    line = cost(len(states), len(chosen), len(left), estimated_seconds(run, spec.name, left), store.folder)
    screen = PlainConsole(stderr=True) if aside else console
    screen.print(line, style="dim", highlight=False)
    try:
        with progress("playing branches", len(chosen), aside) as advance:
            rows = play_all(player, chosen, store, batch, advance)
    except KeyboardInterrupt:
        raise UserError(f"stopped; what was tried is in {store.folder}, and the same command continues") from None
    unchecked = [task for task in states.task.unique() if task not in checkable]
    return counterfactual(run, spec, seed, Played(rows, len(states), unchecked, player.repeatable))


def _place(run: StoredRun, spec: MethodSpec) -> Folder:
    """The folder for branches within that of a run."""
    with Folder.at(run.folder) as place:
        return place.folder(f"counterfactual-{files.safe_name(spec.name)}", make=True)


def cost(reached: int, chosen: int, left: int, seconds: float, folder: Path) -> str:
    """A line with the cost of playing the states that are left."""
    done = f", {chosen - left} of them played already" if left < chosen else ""
    took = f"{2 * left} texts to decode" if left else "nothing to decode"
    took += f", about {seconds:.0f} s by the run's own times" if left and math.isfinite(seconds) else ""
    return f"{chosen} of {reached} mismatches{done}; {took}; kept in {folder}"


class Store:
    """A folder of played branches: Parquet files of many states each, written whole or not at all."""

    def __init__(self, folder: Folder | Path, facts: dict[str, Any]) -> None:
        """Create the folder or continue with it. Raises UserError if it holds something else."""
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
            folder = Folder.at(folder)
        path = FolderFile(folder, "facts.json")
        if folder.has(path.name) and read_object(path, remedy="choose another --folder") != facts:
            raise UserError(f"{folder.path} holds branches of another run, method or seed; choose another --folder")
        if not folder.has(path.name):
            if os.listdir(folder.fileno()):
                raise UserError(f"{folder.path} is not a folder of branches, and is not empty; choose another --folder")
            folder.write_json(path.name, facts)
        self._open, self.folder = folder, folder.path

    def _names(self) -> list[str]:
        return sorted(name for name in self._open.names() if name.endswith(".parquet"))

    def rows(self) -> list[dict[str, Any]]:
        paths = [FolderFile(self._open, name) for name in self._names()]
        remedy = "delete it to play its states again"
        tables = [parquet.read(path, BRANCHES, BRANCHES.names, remedy=remedy) for path in paths]
        for path, table in zip(paths, tables, strict=True):
            if any(column.null_count for column in table.columns):
                raise UserError(f"{path} is damaged (it lacks values); {remedy}")
        return [row for table in tables for row in table.to_pylist()]

    def keys(self) -> set[tuple[Any, ...]]:
        return {key_of(row) for row in self.rows()}

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            records.write_table(FolderFile(self._open, f"{len(self._names()):06d}.parquet"), rows, BRANCHES)


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in STATE)


def facts_of(run: StoredRun, spec: MethodSpec, seed: int) -> dict[str, Any]:
    """What branches depend on, besides their state."""
    same = {name: run.manifest.get(name) for name in ("started", "prompts_hash", "inputs")}
    return {"run": same, "method": spec.digest, "name": spec.name, "seed": seed}


def play_all(
    player: Player,
    states: Sequence[State],
    store: Store,
    batch: int,
    advance: Callable[[int], None] = lambda count: None,
) -> list[dict[str, Any]]:
    """Play the states that the store lacks, adding them in groups of `batch`; return rows of BRANCHES for all states.

    If this is interrupted, what was played is kept. `advance` is called after each state.
    """
    played = {key_of(row): row for row in store.rows()}
    waiting: list[dict[str, Any]] = []
    try:
        for state in states:
            if state.key not in played:
                played[state.key] = player.play(state)
                waiting.append(played[state.key])
                if len(waiting) == batch:
                    store.add(waiting)
                    waiting = []
            advance(1)
    finally:
        store.add(waiting)
    return [played[state.key] for state in states]
