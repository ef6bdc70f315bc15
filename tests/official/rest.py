"""Makes rest.json: what REST's own retriever finds. Call with Python 3.9 and the folder of its unpacked wheel:

python3.9 tests/official/rest.py WHEEL tests/official/rest.json

The wheel is draftretriever-0.1.0-cp39-cp39-manylinux_2_34_x86_64.whl in DraftRetriever/wheels of FasterDecoding/REST
at 50a5fc19 on GitHub; called are Writer and Reader.search with its defaults, as rest/model/utils.py does.
"""

import json
import random
import sys
import tempfile


def main(wheel: str, out: str, count: str = "60") -> None:
    sys.path.insert(0, wheel)
    import draftretriever

    rng = random.Random(2)
    text = [rng.randrange(1, 12) if rng.random() < 0.4 else (place * 7) % 11 + 1 for place in range(1000)]
    place = tempfile.mkdtemp() + "/index"
    writer = draftretriever.Writer(index_file_path=place, max_chunk_len=10**6, vocab_size=100)
    writer.add_entry(text)
    writer.finalize()
    reader, cases = draftretriever.Reader(place), []
    for _ in range(int(count)):
        length, at = rng.randrange(2, 6), rng.randrange(len(text) - 20)
        query = text[at : at + length]
        paths = [[token for token in path if token != -2] for path in reader.search(query, choices=64)[0]]
        cases.append({"query": query, "paths": sorted(paths)})
    with open(out, "w") as file:
        json.dump({"text": text, "cases": cases}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
