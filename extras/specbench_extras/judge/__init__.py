"""Training of the head of judge decoding (arXiv 2501.19309), with mined labels."""
