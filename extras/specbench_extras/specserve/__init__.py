"""SpecServe: drafts as long as another token promises more tokens per time."""
