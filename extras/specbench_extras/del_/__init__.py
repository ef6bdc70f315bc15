"""DEL: the layer to exit at and the draft length, chosen each round (arXiv 2504.05598)."""
