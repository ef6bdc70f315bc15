"""Methods that draft a tree of tokens from a model or a head."""
