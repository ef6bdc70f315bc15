"""The documents that are decoded and how answers are scored: the door to lm-eval, the sandbox, the bundled problems."""
