"""Training the pair's draft model: data × loss over one loop, with the recipes of several papers."""
