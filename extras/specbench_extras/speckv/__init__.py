"""SpecKV: a small network chooses each draft length (arXiv 2605.02888)."""
