"""How a head learns, as held-out answers show it while it is trained: what is printed then, and when it is stopped."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from specbench.base.console import note, say

LOOKS = 8  # equal parts of a training, after each of which the held-out answers are looked at
BEGUN = 0.1  # held-out agreement below which a head has learned next to nothing; our choice


@dataclass
class Curve:
    """The held-out agreement after some steps of a training."""

    steps: int  # of the whole training
    measure: Callable[[], float]  # the share of held-out choices that are the target's, now
    places: int  # where it is measured
    points: dict[int, float] = field(default_factory=dict)  # by the step after which it was measured
    measure_learned: Callable[[], float] | None = None  # the same share on as many answers that are learned from
    learned: dict[int, float] = field(default_factory=dict)  # by step

    def due(self, step: int) -> bool:
        """True if it is to be measured after a step."""
        return step == self.steps or step % math.ceil(self.steps / LOOKS) == 0

    def look(self, step: int) -> None:
        """Measure it, keep it, in place, and print it."""
        self.points[step] = self.measure()
        more = ""
        if self.measure_learned:
            self.learned[step] = self.measure_learned()
            more = f"; on answers it learns from, {self.learned[step]:.1%}"
        note(f"step {step} of {self.steps}: held out, {self.points[step]:.1%} of the choices are the target's{more}")

    def tell(self) -> None:
        """Print all points, and what they advise."""
        if self.points:
            say("held out by step: " + ", ".join(f"{step} {value:.1%}" for step, value in self.points.items()))
        if advice := self.advice():
            say(advice)

    def advice(self) -> str:
        """What would make the head better, as far as the points tell; empty for fewer than three.

        Differences within two standard errors of a share, at its largest, are taken for none.
        """
        if len(self.points) < 3:
            return ""
        (*_, before, _, last), noise = self.points.values(), math.sqrt(1 / max(1, self.places))
        best = max(self.points, key=self.points.__getitem__)
        if self.points[best] < BEGUN:
            return (
                f"it has hardly begun to learn in {self.steps} steps: take more of them (--recipe epochs=N, or a "
                "smaller --recipe batch=N), and more --documents"
            )
        if self.points[best] - last > noise:
            return (
                f"it was best after step {best}, and then learned its answers by heart: take more --documents, or "
                "fewer epochs (--recipe epochs=N)"
            )
        if last - before > noise:
            advice = "it was still rising: more --documents, or more epochs (--recipe epochs=N), would raise it further"
        else:
            advice = "it had stopped rising: more --documents may raise it further, more epochs will not"
        if self.learned and list(self.learned.values())[-1] - last > 2 * noise:
            advice += "; it knows answers that it learned from better than others: documents are what it lacks most"
        return advice
