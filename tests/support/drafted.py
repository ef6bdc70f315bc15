"""Recorded drafts that a test writes down as (drafted, accepted), as rows of a text and as runs."""

import math

from synthetic import Rows

from specbench.analysis.replay import Unknown, texts_of

KEY = {"repeat": 0, "task": "one", "doc_id": 0}
NAN = math.nan
SURE = Unknown(0.5, {"accepted": 0.5, "rejected": 0.5, "unread": 0.5})


def made(*rounds, cut=0):
    """Rows of drafted and accepted tokens; the last round commits `cut` tokens less than it verified."""
    rows = [KEY | {"round": 0, "drafted": 0, "accepted": 0, "committed": 1, "truncated": 0}]
    for number, (drafted, accepted) in enumerate(rounds, 1):
        less = cut if number == len(rounds) else 0
        kept = accepted + 1 - less
        row = KEY | {"round": number, "drafted": drafted, "accepted": min(accepted, kept), "committed": kept}
        tokens = list(range(10, 10 + drafted))
        rows.append(row | {"truncated": less, "draft_tokens": tokens, "predictions": None})
    return rows


def text_of(rows, finish="length", eos=()):
    (text,) = texts_of(rows, {(0, "one", row["doc_id"]): finish for row in rows}, set(eos))
    return text


SPS = {"length": "fixed", "stop_at_eos": False}


def run_of(folder, methods, **options):
    """A run with these rounds by method: lists of (drafted, accepted) for each document; forwards take round figures.

    A round with K drafted takes 10 + 0.5 (K + 1) seconds in the target, 1 a draft forward, and 2 besides.
    """
    rows = Rows()
    for method, documents in methods.items():
        for doc_id, shapes in enumerate(documents):
            seconds = [10 + 0.5 * (k + 1) + k + 2 for k, _ in shapes]
            facts = {"tokens": [*range(sum(a + 1 for _, a in shapes) + 1)], "prompt_tokens": 30 + doc_id}
            task = options.get("tasks", ["one"] * 9)[doc_id]
            prefill, *own = rows.add(method, doc_id, sum(seconds), shapes, task=task, **facts)
            prefill |= {"target_seconds": 10 + 0.5 * (30 + doc_id), "draft_seconds": 1.0, "seconds": 50.0}
            prefill |= {"draft_forwards": 1, "target_forwards": 1}
            for row, whole in zip(own, seconds, strict=True):
                k = row["drafted"]
                row |= {"target_seconds": 10 + 0.5 * (k + 1), "draft_seconds": float(k), "seconds": whole}
                row |= {"first_draft_seconds": 1.0 if k else None}
                row |= {"draft_tokens": [7] * k} | options.get("extra", {})
    values = {name: SPS | {"gamma": int(name[10:-1])} for name in methods if name.startswith("sps[gamma=")}
    return rows.run(folder, settings=values | options.get("settings", {}), baseline=None)
