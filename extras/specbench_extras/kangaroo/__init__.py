"""Training and importing of Kangaroo's adapters (arXiv 2404.18911)."""
