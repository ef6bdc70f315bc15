"""Makes rest.json: what REST's own retriever finds. Call with Python 3.9 and the folder of its unpacked wheel:

python3.9 tests/official/rest.py WHEEL tests/official/rest.json

The wheel is draftretriever-0.1.0-cp39-cp39-manylinux_2_34_x86_64.whl in DraftRetriever/wheels of FasterDecoding/REST
at 50a5fc19 on GitHub; called are Writer and Reader.search, as rest/model/utils.py does. It keeps either of two equally
frequent prefixes by chance, and drops either of two equally costly ones: stored are look-ups without such a choice.
Look-ups that it ends with the error "draft_choices was not cut enough" are left out.
"""

import json
import random
import sys
import tempfile
from collections import Counter


def text(rng, length):
    """Tokens of which each is followed by some more often than by others."""
    alphabet, made = rng.randrange(3, 9), [1]
    while len(made) < length:
        made.append((made[-1] * 5 + int(rng.expovariate(1))) % alphabet + 1)
    return made


def main(wheel: str, out: str, count: str = "40") -> None:
    sys.path.insert(0, wheel)
    import draftretriever

    rng, cases, place = random.Random(2), [], tempfile.mkdtemp() + "/index"
    while len(cases) < int(count):
        tokens = text(rng, rng.randrange(30, 300))
        writer = draftretriever.Writer(index_file_path=place, max_chunk_len=10**6, vocab_size=100)
        writer.add_entry(tokens)
        writer.finalize()
        length, at, nodes = rng.randrange(2, 5), rng.randrange(len(tokens) - 10), rng.choice([8, 16, 24, 32])
        query, reader = tokens[at : at + length], draftretriever.Reader(place)
        follow = [tokens[end : end + 10] for end in range(length, len(tokens)) if tokens[end - length : end] == query]
        often = Counter(tuple(row[: end + 1]) for row in follow for end in range(len(row)))
        times = sorted([*often.values(), 0], reverse=True)
        if len(often) > nodes and times[nodes - 1] == times[nodes]:
            continue
        found = set()
        for _ in range(30):
            try:
                paths = reader.search(query, choices=nodes)[0]
            except ValueError:
                found |= {(), (0,)}
                break
            paths = [[token for token in path if token != -2] for path in paths]
            found.add(tuple(sorted({tuple(path[: end + 1]) for path in paths for end in range(len(path))})))
        cut = len(min(found)) < min(len(often), nodes)
        if len(found) == 1 and cut == (len(cases) % 4 < 3):  # three of four are cut
            cases.append({"text": tokens, "query": query, "nodes": nodes, "prefixes": min(found)})
    with open(out, "w") as file:
        file.write("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
