"""What a beginning of an answer is worth: the target finishes it greedily, and the task scores the whole."""

from collections.abc import Callable, Sequence

from specbench.decoding.generate import Ending, finish
from specbench.decoding.session import Session
from specbench.decoding.types import Utility


def worth(target: Session, begin: Callable[[], Ending], score: Callable[[str], float]) -> Utility:
    """Of answers to one document; `begin` makes the ending of an empty one. Feeds `target` in place."""

    def utility(prompt: Sequence[int], answer: Sequence[int]) -> float:
        ending = begin()
        ending.keep(answer)
        if not ending.reason:
            finish(target, target.catch_up([*prompt, *answer]).logits[-1], ending)
        return score(ending.text())

    return utility
