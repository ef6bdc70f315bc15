"""Training of EAGLE-3's head by what its trees are worth to the target (GTO, arXiv 2509.22134)."""
