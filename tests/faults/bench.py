"""What all faults share: a place with a tiny pair, uninterrupted runs of it, and how a try is told."""

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import place
from faults.child import CONTEXT, Command

BLOCK = 3  # documents whose parts are joined, so that eight documents make two blocks and a rest
TEMPERATURES = (0.0, 0.8)


@dataclass
class Outcome:
    """What came of one try, or of several; `notes` tell what was not as it must be."""

    tried: int = 1
    recovered: int = 0
    lost: int = 0
    notes: list[str] = field(default_factory=list)
    skipped: str = ""


@dataclass
class Fault:
    """Something that goes wrong, and the ways in which it is tried: functions of an empty folder of their own."""

    name: str
    tries: Sequence[Callable[[Path], Outcome]]


@dataclass
class Bench:
    """Where and how often to try. `facts` are those of uninterrupted runs by temperature, `events` what they did."""

    root: Path
    seed: int
    short: bool
    disks: bool = False  # whether small disks may be mounted
    facts: dict[float, dict[str, list[tuple[Any, ...]]]] = field(default_factory=dict)
    runs: dict[float, Path] = field(default_factory=dict)
    seconds: dict[bool, float] = field(default_factory=dict)  # of a run, by whether its process is a fresh one
    events: int = 0

    @property
    def place(self) -> Path:
        return self.root / "pair"

    def rng(self, *names: object) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *names))))

    def count(self, full: int, short: int) -> int:
        return short if self.short else full

    def temperature(self, turn: int) -> float:
        """Greedy and sampled in turn; a short bench has no time for the latter."""
        return list(self.runs)[turn % len(self.runs)]

    def prepare(self, runs: bool = True) -> None:
        """Make the pair, and the uninterrupted runs if they are needed."""
        self.place.mkdir(parents=True)
        process = CONTEXT.Process(target=place.make, args=(self.place,))
        process.start()
        process.join()
        if not runs:
            return
        began, info = time.monotonic(), self.root / "events"
        self.runs = {t: self.root / f"whole-{t:g}" for t in TEMPERATURES[: self.count(2, 1)]}
        watch = {"at_events": {"folder": str(self.runs[0.0]), "told": str(info), "what": "count"}}
        commands = [
            Command(self.words(folder, t), self.root / f"said-{t:g}", {"block": BLOCK} | (watch if t == 0 else {}))
            for t, folder in self.runs.items()
        ]
        if not self.short:
            commands.append(Command(self.words(self.root / "fresh", 0.0), self.root / "said-fresh", fresh=True))
        for command in commands[: len(self.runs)]:
            assert command.end() == 0, command.said()
        self.seconds[False] = time.monotonic() - began
        self.seconds[True] = self.seconds[False] + 5
        if len(commands) > len(self.runs):
            assert commands[-1].end() == 0, commands[-1].said()
            self.seconds[True] = time.monotonic() - began
        self.facts = {t: place.facts(folder) for t, folder in self.runs.items()}
        self.events = int(info.read_text())
        texts = {row[9] for row in self.facts[0.0]["samples"]}
        assert len(texts) > 8, "one text for each of eight documents, and others where csd rescues"

    def words(self, out: Path, temperature: float = 0.0, *more: object) -> list[str]:
        return place.run_words(self.place, out, "--temperature", temperature, *more)

    def again(self, folder: Path, temperature: float, output: Path, faults: dict[str, Any] | None = None) -> Command:
        """What a user does about a run that ended: goes on with it, or starts it where there is nothing to go on."""
        begun = (folder / "manifest.json").exists()
        words = ["run", "--resume", str(folder)] if begun else self.words(folder, temperature)
        return Command(words, output, {"block": BLOCK} | (faults or {}))

    def resumed(self, folder: Path, temperature: float, output: Path, what: str) -> Outcome:
        """Go on with a run to its end, and set it against the uninterrupted one."""
        kept = place.kept(folder)
        command = self.again(folder, temperature, output)
        code = command.end()
        return self.judged(folder, temperature, code, command, what, kept)

    def judged(
        self, folder: Path, temperature: float, code: int, command: Command, what: str, kept: dict[Any, float]
    ) -> Outcome:
        """Whether a run ended as it must; rows that were `kept` on the disk before must be the same ones."""
        lost = place.lost(folder, self.facts[temperature])
        after = place.kept(folder)
        lost += sum(after.get(key) != seconds for key, seconds in kept.items())
        notes = [] if code == 0 else [f"exit code {code}: {last_words(command.said())}"]
        notes += [f"{lost} rows lost"] if lost else []
        if code == 0 and not place.plain_end(folder):
            notes.append(f"left behind: {sorted(path.name for path in folder.iterdir())}")
        return Outcome(1, int(not notes), lost, [f"{what}: {note}" for note in notes])


def last_words(text: str, count: int = 300) -> str:
    return " ".join(text.split())[-count:]


def one_error(text: str) -> str | None:
    """The line of an error as a user must meet it; None if there is none, or several, or a traceback."""
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    return lines[0] if len(lines) == 1 and "Traceback" not in text else None


def expect(conditions: dict[str, object], what: str, lost: int = 0) -> Outcome:
    """An outcome from what must hold, by its description."""
    notes = [f"{what}: not so: {name}" for name, holds in conditions.items() if not holds]
    return Outcome(1, int(not notes and not lost), lost, notes + ([f"{what}: {lost} rows lost"] if lost else []))


def named(text: str, *words: str) -> bool:
    """Whether a text names all of these, wherever lines are broken."""
    joined = re.sub(r"\s+", "", text)
    return all(re.sub(r"\s+", "", word) in joined for word in words)
