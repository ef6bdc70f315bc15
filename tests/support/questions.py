"""Ten short questions for a real chat model."""

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Name three fruits.",
    "Repeat exactly: the quick brown fox jumps over the lazy dog, the quick brown fox jumps.",
    "What is 7 + 5?",
    "Who wrote Hamlet?",
    "Translate into French: Good morning.",
    "Correct the spelling: I recieved a leter from my freind yesterday.",
    "What do bees make?",
    "Give me a title for a story about a lighthouse.",
)
