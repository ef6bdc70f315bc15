"""The only figure of an answer to MT-Bench that needs no judge, for lm-eval's `!function`."""


def words(doc: dict[str, object], results: list[str]) -> dict[str, int]:
    """`words`: how many words an answer has; not a measure of its quality."""
    return {"words": len(results[0].split())}
