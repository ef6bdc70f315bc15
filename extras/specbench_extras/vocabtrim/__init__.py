"""Counting which tokens a draft's output layer keeps, and how many (VocabTrim)."""
