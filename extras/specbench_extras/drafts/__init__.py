"""Training a pair's draft model to be accepted by its target, and what drafts of one target are worth."""
