"""Cascade speculative drafting: a draft model that itself speculates."""
