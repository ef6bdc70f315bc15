"""The draft head of EAGLE-3: answers of the target, training-time test, and heads that others released."""
