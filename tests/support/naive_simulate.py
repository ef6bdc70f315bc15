"""Rounds laid out a second time: every outcome of the untested positions is written out, and drafts token by token.

The tests hold `specbench.analysis.replay` against it, so it shares nothing with it but the rows of the records.
"""

import itertools
import math
from typing import Any

Row = dict[str, Any]


def positions(rows: list[Row]) -> list[Row]:
    """What is known of each token behind the prefill's: agrees (True, False, None), signal, and the tail behind it."""
    results: list[Row] = []
    for row in rows[1:]:
        signals = row["predictions"] or [math.nan] * row["drafted"]
        tokens = row["draft_tokens"]
        for place in range(row["committed"]):
            if place < row["accepted"]:
                results.append({"agrees": True, "signal": signals[place]})
            elif place < row["drafted"]:
                tail = list(zip(signals[place + 1 :], tokens[place + 1 :], strict=True))
                results.append({"agrees": False, "signal": signals[place], "token": tokens[place], "tail": tail})
            else:
                results.append({"agrees": None, "signal": math.nan})
    return results


def beyond(rows: list[Row]) -> list[tuple[float, int]]:
    """Signals and tokens of the last draft behind the end of the text."""
    last = rows[-1]
    if len(rows) < 2 or not last["truncated"]:
        return []
    signals = last["predictions"] or [math.nan] * last["drafted"]
    return list(zip(signals[last["committed"] :], last["draft_tokens"][last["committed"] :], strict=True))


def ends(rule: Row, signals: list[float]) -> bool:
    """Whether a draft with these signals, one a token, ends with its last token by its length."""
    n, h = len(signals), rule["threshold"]
    if n == rule["longest"]:
        return True
    if rule["kind"] == "fixed" or n < rule["shortest"]:
        return False
    if rule["kind"] == "specdecpp":
        return 1 - math.prod(signals[:-1]) > h
    if rule["kind"] == "confidence":
        return signals[-1] < h
    if rule["kind"] == "cumulative":
        return math.prod(signals) < h
    return signals[-1] > h


def draft(rule: Row, path: list[tuple[float, bool]], guess: float) -> int:
    """How many tokens are drafted along a path of signals and whether a token is an EOS; behind it all is guessed."""
    signals: list[float] = []
    for place in itertools.count():
        signal, eos = path[place] if place < len(path) else (guess, False)
        signals.append(guess if math.isnan(signal) else signal)
        if ends(rule, signals) or (eos and rule["stop_at_eos"]):
            return len(signals)
    raise AssertionError


def simulate(rows: list[Row], ended: bool, eos: set[int], rule: Row, chance: float, guess: float) -> Row:
    """Expected rounds, drafted and accepted tokens of one text; `guess` is every signal that is not known."""
    text, behind = positions(rows), beyond(rows)
    open_places = [i for i, one in enumerate(text) if one["agrees"] is None]
    total = {"rounds": 0.0, "drafted": 0.0, "accepted": 0.0}
    for outcome in itertools.product([True, False], repeat=len(open_places)):
        weight = math.prod(chance if hit else 1 - chance for hit in outcome)
        decided = dict(zip(open_places, outcome, strict=True))
        at = 0
        while at < len(text):
            path: list[tuple[float, bool]] = []
            hits = 0
            for i in range(at, len(text)):
                agrees = decided.get(i, text[i]["agrees"])
                if agrees:
                    path.append((text[i]["signal"], ended and i == len(text) - 1))
                    hits += 1
                    continue
                path.append((text[i]["signal"], text[i].get("token") in eos))
                path += [(signal, token in eos) for signal, token in text[i].get("tail", [])]
                break
            else:
                path += [(signal, token in eos) for signal, token in behind]
            drafted = draft(rule, path, guess)
            accepted = min(hits, drafted)
            total["rounds"] += weight
            total["drafted"] += weight * drafted
            total["accepted"] += weight * accepted
            at += accepted + 1
    return total


def outcomes_of(texts: list[list[Row]], chances: list[float]) -> Any:
    """What each text's open places may be, all together: weight, and whether the draft agrees at each place."""
    places = [(t, i) for t, text in enumerate(texts) for i, one in enumerate(text) if one["agrees"] is None]
    for outcome in itertools.product([True, False], repeat=len(places)):
        weight = math.prod(chances[t] if hit else 1 - chances[t] for (t, _), hit in zip(places, outcome, strict=True))
        decided = dict(zip(places, outcome, strict=True))
        known = [[one["agrees"] for one in text] for text in texts]
        for (t, i), hit in decided.items():
            known[t][i] = hit
        yield weight, known


def hits(agrees: list[bool], at: int) -> int:
    """How many drafted tokens in a row are accepted from a place on."""
    return next((n for n, hit in enumerate(agrees[at:]) if not hit), len(agrees) - at)


def fewest_seconds(rows: list[Row], chance: float, empty: float, token: float) -> float:
    """Seconds of a text under the best of all lengths, tried one by one; a round takes `empty`, each draft `token`."""
    text, seconds = positions(rows), 0.0
    for weight, (agrees,) in outcomes_of([text], [chance]):
        best = [0.0] * (len(text) + 1)
        for at in reversed(range(len(text))):
            lengths = range(len(text) - at + 1)
            best[at] = min(empty + token * n + best[min(at + min(n, hits(agrees, at)) + 1, len(text))] for n in lengths)
        seconds += weight * best[0]
    return seconds


def better_of_two(all_rows: list[list[Row]], chances: list[float], gamma: int, second_is_cheaper: bool) -> list[Row]:
    """Rounds and accepted tokens that each of two drafters gets, of which the one drafts that is accepted further."""
    texts = [positions(rows) for rows in all_rows]
    total = [{"rounds": 0.0, "accepted": 0.0}, {"rounds": 0.0, "accepted": 0.0}]
    for weight, agrees in outcomes_of(texts, chances):
        at = 0
        while at < len(texts[0]):
            first, second = (min(hits(one, at), gamma) for one in agrees)
            who = int(second > first or (second == first and second_is_cheaper))
            total[who]["rounds"] += weight
            total[who]["accepted"] += weight * max(first, second)
            at += max(first, second) + 1
    return total
