"""Rules for how many tokens a draft has."""
