"""Training of draft heads on the blocks that they draft themselves (Draft-OPD, arXiv 2605.29343)."""
