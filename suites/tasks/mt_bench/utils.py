"""What is known of an answer to MT-Bench without a judge, for lm-eval's `!function`."""


def words(doc: dict[str, object], results: list[str]) -> dict[str, int]:
    """`words`: how many words an answer has; no measure of its worth."""
    return {"words": len(results[0].split())}
