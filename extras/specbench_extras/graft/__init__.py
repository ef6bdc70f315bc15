"""Graft: trees whose unsure branches are retrieved instead of drafted."""
