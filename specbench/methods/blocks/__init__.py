"""Methods that draft a block of tokens in one forward."""
