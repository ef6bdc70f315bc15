"""A judge model that rates answers from 1 to 10, as MT-Bench has it."""
