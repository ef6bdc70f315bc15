"""A bandit that learns each draft length while decoding, from the signals of SpecKV (arXiv 2605.02888)."""
