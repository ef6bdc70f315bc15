"""What was tried on tiny models of each architecture of transformers: the table of `specbench list architectures`."""

import csv
from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).with_name("architectures.csv")  # tests/support/architectures.py writes it
TRIED = ("sps", "rsd", "pld", "swift", "eagle3")  # a chain, a tree, a lookup, skipped layers, a head


def version() -> str:
    """The version of transformers that the table was made with."""
    return TABLE.read_text().splitlines()[0].removeprefix("# ")


def architectures() -> list[dict[str, str]]:
    """Rows by `model_type` (`architecture`). A cell of a method is `exact`, or the reason why it refuses.

    `vanilla` is the number of distinct tokens of the text that the methods had to equal, or why the model is refused.
    """
    return list(csv.DictReader(TABLE.read_text().splitlines()[1:]))


def described() -> Iterator[tuple[str, str]]:
    """For each architecture its name and a line of words."""
    for row in architectures():
        if not row["vanilla"].isdecimal():
            yield row["architecture"], f"refused: {row['vanilla']}"
            continue
        exact = [name for name in TRIED if row[name] == "exact"]
        runtimes = ["eager", *(["static"] if row["static"] == "exact" else [])]
        words = [f"{', '.join(exact)} equal vanilla", f"on {', '.join(runtimes)}"]
        if refused := [name for name in TRIED if row[name] != "exact"]:
            words.append(f"refused: {', '.join(refused)}")
        yield row["architecture"], "; ".join(words)
