"""EasySpec: neighbouring layers of the draft at the same time (arXiv 2502.02493)."""
