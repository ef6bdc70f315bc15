"""DEER: a block drafter that reads the text alone (arXiv 2512.15176)."""
