"""Prompts of calibration tasks, for lm-eval's `!function`."""


def signature_and_docstring(doc: dict[str, str]) -> str:
    """An MBPP document in HumanEval's form: the lines above its function, the signature, and the text as docstring."""
    lines = doc["code"].replace("\r\n", "\n").split("\n")
    begin = next((i for i, line in enumerate(lines) if line.startswith("def ")), 0)
    end = next((i for i, line in enumerate(lines) if i >= begin and line.rstrip().endswith(":")), begin)
    head = [line.rstrip() for line in lines[: end + 1]]
    return "\n".join([*head, f'    """{doc["text"].strip()}"""']) + "\n"
