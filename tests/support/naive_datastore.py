"""Slow second implementation of the datastore and of what is drafted from it, over plain lists of documents."""

from collections import Counter

DEPTH = 16


def shards(documents, size):
    """Documents as they are kept together: cut where longer than a shard, as many as fit, an end mark behind each."""
    results, places = [[]], 0
    for document in documents:
        for start in range(0, len(document), size):
            piece = document[start : start + size]
            if places + len(piece) > size:
                results.append([])
                places = 0
            results[-1].append(piece)
            places += len(piece) + 1
    return [result for result in results if result]


def occurrences(documents, text):
    """Places (document, token) where a text begins."""
    return [
        (i, j)
        for i, document in enumerate(documents)
        for j in range(len(document))
        if document[j : j + len(text)] == text
    ]


def longest(documents, context, most, least):
    for length in range(min(most, len(context)), least - 1, -1):
        if occurrences(documents, context[-length:]):
            return length
    return 0


def following(documents, text, count, hits, end):
    """What follows a text in one shard, cut to `count` tokens and filled up with `end`: every n-th of the ordered."""
    stream = [token for document in documents for token in [*document, end]] + [end] * DEPTH
    starts = [sum(len(document) + 1 for document in documents[:i]) for i in range(len(documents))]
    places = sorted((starts[i] + j for i, j in occurrences(documents, text)), key=lambda p: (stream[p : p + DEPTH], p))
    if len(places) > hits:
        places = [places[i * len(places) // hits] for i in range(hits)]
    results = []
    for place in places:
        row = stream[place + len(text) : place + len(text) + count]
        row = row[: row.index(end)] if end in row else row
        results.append((*row, *[end] * (count - len(row))))
    return results


def frequent(rows, nodes, end):
    """The most frequent prefixes; then the shorter, then the smaller."""
    counts = Counter(row[:i] for row in rows for i in range(1, len(row) + 1) if end not in row[:i])
    return sorted(counts, key=lambda prefix: (-counts[prefix], len(prefix), prefix))[:nodes]


def drafted(documents, context, most, least, count, nodes):
    """All drafted texts, each with its beginnings, of documents that are in one shard or several, without a limit."""
    for length in range(min(most, len(context)), least - 1, -1):
        rows = following(documents, context[-length:], count, 10**9, end=10**9)
        if prefixes := frequent(rows, nodes, end=10**9):
            return set(prefixes)
    return set()
