"""The acceptance head of SpecDec++: draft tokens with their chance of acceptance, and heads that others released."""
