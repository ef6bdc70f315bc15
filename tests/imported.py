"""Other tools' files as tests write them, and what a comparison reads from the runs that are made of them."""

import json
import math

from specbench.analysis import compare
from specbench.results.stored import StoredRun


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(*folders):
    """The summary of runs by task and method."""
    found = compare.summary(compare.measured([StoredRun(folder) for folder in folders]))
    return found.set_index(["task", "method"])


def unknown(row, *names):
    return [name for name in names if not math.isnan(row[name])] == []


def answer(question, tokens, seconds, lengths, *, category="writing", model="eagle-float16", texts=None):
    """A line of a Spec-Bench answer file; `tokens` and `seconds` have an entry per turn."""
    turns = texts or ["words"] * len(tokens)
    choice = {"index": 0, "turns": turns, "decoding_steps": [len(lengths)], "new_tokens": tokens}
    choice |= {"wall_time": seconds, "accept_lengths": lengths}
    row = {"question_id": question, "category": category, "answer_id": "Xy", "model_id": model, "tstamp": 1.7e9}
    return row | {"choices": [choice]}
