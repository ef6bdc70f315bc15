"""Acceptance and time by the place in the context."""
