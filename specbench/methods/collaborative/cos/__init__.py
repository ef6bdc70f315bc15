"""Collaborative decoding: methods in which several models choose each token together (CoS, arXiv 2502.01662)."""
