"""Scoring of pocket_math500, for lm-eval's `!function`.

What it needs is imported with the task, since each child process that scores (`specbench.tasks.timed`) would import it
again.
"""

from lm_eval.tasks.minerva_math import utils as minerva
from math_verify import parse, verify


def score_math(doc: dict[str, str], results: list[str]) -> dict[str, int]:
    """`exact_match`: the last box equals the answer, by lm-eval's MATH rules; `math_verify`: as in minerva_math."""
    try:
        boxed = minerva.remove_boxed(minerva.last_boxed_only_string(results[0]) or "")
    except AssertionError:  # no box, or a broken one
        boxed = "[invalidanswer]"
    gold = minerva.normalize_final_answer(doc["answer"])
    return {
        "exact_match": int(minerva.is_equiv(minerva.normalize_final_answer(boxed), gold)),
        "math_verify": int(verify(gold=parse(doc["solution"]), target=parse(results[0]))),
    }
