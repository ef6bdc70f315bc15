"""Records written down by hand, document by document, and what must be read of them."""

from specbench.results.records import read_rows


def key(index, method="sps"):
    return {"repeat": 0, "task": "one", "doc_id": index, "method": method, "warmup": False}


def write(recorder, index, text="text"):
    samples = [key(index, m) | {"text": f"{text} {index}", "tokens": [1, 2], "finish": "eos"} for m in ("sps", "plain")]
    rounds = [key(index) | {"round": i, "drafted": 4, "decisions": [1, 0, 3, 3]} for i in range(3)]
    recorder.write(index, samples, rounds, {"sps": [[index, 1, 2]], "plain": None})


def texts(folder):
    return [row["text"] for row in read_rows(folder, "samples").to_pylist()]


def expected_texts(count):
    return [f"text {i}" for i in range(count) for _ in "ab"]
