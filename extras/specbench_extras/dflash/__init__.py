"""Training and importing of DFlash's block drafters (arXiv 2602.06036)."""
