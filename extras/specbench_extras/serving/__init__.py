"""What the methods of a run cost to serve, in memory and in time to the first token (CoSpec, arXiv 2605.24793)."""
