"""Arbitration against counterfactual branches, for the terminal, as Markdown, and as CSV or JSON for programs."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specbench import files
from specbench.complementarity import write_cells
from specbench.config import UserError
from specbench.console import PlainConsole, console, progress
from specbench.counterfactual import (
    ALL,
    DRAFT,
    METRICS,
    RIGHT,
    TARGET,
    WRONG,
    Counterfactual,
    Played,
    State,
    cells,
    counterfactual,
    drawn,
    foretold_seconds,
    method_of,
    reached,
)
from specbench.counterfactual_play import Player, Store, facts_of, play_all
from specbench.report.acceptance_view import plain, say, write
from specbench.report.complementarity_view import Sheet, check_out, print_sheets
from specbench.stored import StoredRun

HEADS = {"share": "share", "not_worse": "not worse", "kept": "kept", "agreement": "agreement"}


def main(
    folder: Path,
    method: str | None,
    number: int,
    seed: int,
    batch: int,
    states: Path | None,
    out: Path | None,
    format: str,
) -> None:
    """Play `number` states of a run and print what came of them: `table`, `md`, `csv` or `json`.

    `states` is the folder of what was played, and goes on where it stopped; `out` a file for the cells of the paper's
    table. Before anything is decoded, what it will cost is said, on standard error where standard output is for
    programs. Raises UserError as `method_of`, `reached` and `Player` do.
    """
    check_out(out)
    run = StoredRun(folder)
    spec = method_of(run, method)
    run.scores()  # only a finished run
    found = reached(run, spec.name)
    player = Player(run, spec, seed)
    known = player.checkable(found)
    store = Store(states or run.folder / f"counterfactual-{files.safe_name(spec.name)}", facts_of(run, spec, seed))
    chosen = drawn(run, spec.name, found[found.task.isin(known)], number, seed)
    screen = console if format == "table" else PlainConsole(stderr=True)
    played = store.keys()
    left = [state for state in chosen if state.key not in played]
    say(screen, [cost(len(found), len(chosen), len(left), foretold_seconds(run, spec.name, left), store.folder)], "dim")
    rows = _played(player, chosen, store, batch, format == "table")
    unchecked = [task for task in found.task.unique() if task not in known]
    figures = counterfactual(run, spec, seed, Played(rows, len(found), unchecked, player.repeatable))
    if format in ("csv", "json"):
        apart = {name: None if math.isnan(value) else value for name, value in vars(figures.asymmetry).items()}
        facts = vars(figures) | {"asymmetry": apart, "sentences": " ".join(sentences(figures))}
        facts |= {"graded": ", ".join(figures.graded), "unchecked": ", ".join(figures.unchecked)}
        write(plain(facts), "counterfactual", format)
    else:
        title = f"BRANCHES of {figures.method} at mismatches ({figures.pair}, {figures.sampling})"
        print_sheets(console, title, sheets(figures), sentences(figures), notes(figures), format)
    if out:
        write_cells(out, cells(run, spec, figures))


def _played(player: Player, chosen: Sequence[State], store: Store, batch: int, shown: bool) -> list[dict[str, Any]]:
    try:
        with progress("playing branches", len(chosen), aside=not shown) as advance:
            return play_all(player, chosen, store, batch, advance)
    except KeyboardInterrupt:
        raise UserError(f"stopped; what was played is in {store.folder}, and the same command goes on") from None


def cost(reached: int, chosen: int, left: int, seconds: float, folder: Path) -> str:
    """What the analysis takes, before it begins."""
    done = f", {chosen - left} of them played already" if left < chosen else ""
    took = f"{2 * left} texts to decode, about {seconds:.0f} s by the run's own times" if left else "nothing to decode"
    return f"{chosen} of {reached} mismatches{done}; {took}; kept in {folder}"


def sheets(found: Counterfactual) -> list[Sheet]:
    """By kind of state, then by task where there are several."""
    heads = ["n", *HEADS.values()]
    made = [
        Sheet("", ["states", *heads], [[one["kind"].lower(), *_row(one)] for one in found.kinds.to_dict("records")])
    ]
    if len(found.tasks) > 1:
        rows = [[one["task"], *_row(one)] for one in found.tasks.to_dict("records")]
        made.append(Sheet("", ["task", "n", *heads[2:]], [row[:2] + row[3:] for row in rows]))
    return made


def _row(one: dict[str, Any]) -> list[str]:
    return [str(one["states"]), *(percent(one, name) for name in METRICS)]


def percent(one: dict[str, Any], name: str) -> str:
    """A share with its interval; - where there is no state to tell it of."""
    if one[name] != one[name]:
        return "-"
    low, high = one[f"{name}_low"], one[f"{name}_high"]
    known = f" [{100 * low:.0f}, {100 * high:.0f}]" if low == low and not low == high == one[name] else ""
    return f"{100 * one[name]:.1f}{known}"


def sentences(found: Counterfactual) -> list[str]:
    """What the tables say."""
    kinds = found.kinds.set_index("kind")
    every = kinds.loc[ALL]
    drafts, targets = every.not_worse, 1 - kinds.share[DRAFT]
    lines = [
        f"{found.method} agrees with the better branch, or loses nothing, in {100 * every.agreement:.1f} % of the "
        f"states; the draft's branch throughout would in {100 * drafts:.1f} %, the target's in {100 * targets:.1f} %."
    ]
    if not (kinds.states[DRAFT] or kinds.states[TARGET]):
        return [*lines, "No state has a better branch: at these mismatches nothing was to be won or lost."]
    for kind, other in ((DRAFT, "draft"), (TARGET, "target")):
        if not kinds.states[kind]:
            return [*lines, f"No state has a better {other} branch, so how well the kinds are told apart is not known."]
    one = found.asymmetry
    told = f"Draft tokens are kept in {100 * kinds.kept[DRAFT]:.1f} % of the states where they are better, and in "
    told += f"{100 * kinds.kept[TARGET]:.1f} % where the target's are: {100 * one.value:+.1f} points"
    if one.low != one.low:
        return [*lines, f"{told}, of too few documents for an interval."]
    verdict = "the arbiter tells them apart" if one.low > 0 else "that may be chance"
    if one.high < 0:
        verdict = "the arbiter keeps the wrong ones"
    return [*lines, f"{told} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]: {verdict}."]


def notes(found: Counterfactual) -> Iterator[str]:
    """What a reader must know of these figures, a line each."""
    yield (
        f"{found.states} states of {found.documents} documents, drawn from {found.reached} with seed {found.seed}; "
        "shares in percent; [ ]: 95 %, bootstrap over documents"
    )
    yield (
        "a branch forces one token, then the same method goes on to the end of the text; not worse: the draft's branch "
        "scores no less; kept: the run kept the draft's token; agreement: its choice scores no less than the other"
    )
    if found.repeatable:
        yield f"in {found.same} of {found.states} states the branch that the run took is the run's own text again"
    else:
        yield "this arbiter draws lots, so the branch that the run took ends otherwise than its text; one seed for both"
    if found.graded:
        both = f"{RIGHT} / {WRONG}".lower()
        yield f"graded scores, not right or wrong ({', '.join(found.graded)}): {both} are equal scores above / of 0"
    if found.unchecked:
        yield f"left out, since a judge model scores them: {', '.join(found.unchecked)}"
    if found.lost:
        yield f"not met again, so in no figure: {found.lost}, whose rounds came out otherwise than recorded (near-ties)"
