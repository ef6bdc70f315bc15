"""OSD: a draft that learns while it serves (arXiv 2310.07177)."""
