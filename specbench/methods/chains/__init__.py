"""Methods that draft a chain of tokens from a model, and decoding without a draft."""
