"""S2D: one draft model that may speak after some of its layers (arXiv 2407.01955)."""
