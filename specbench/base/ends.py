"""The ends of texts, as engines name them."""

STOPPED = frozenset(
    (
        *("stop", "eos", "eos_token", "end_id", "end_turn", "end_of_turn", "stop_sequence", "stop_token", "stop_str"),
        *("stop_string", "stop_word", "stop_words", "tool_calls", "tool_call", "tool_use", "function_call"),
    )
)
CUT = frozenset(("length", "max_tokens", "max_new_tokens", "max_output_tokens", "max_length", "model_length"))


def end_of(reason: str) -> str | None:
    """`stop` or `length`, for whatever an engine calls it; None for an end that is a failure, or not known."""
    word = reason.strip().lower()
    return "stop" if word in STOPPED else "length" if word in CUT else None
