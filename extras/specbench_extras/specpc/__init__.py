"""SpecPC: the target reads a shortened prompt."""
