"""Whether CoSpec's arbiter was right at the mismatches it met (arXiv 2605.24793, section 4.3)."""
