"""Drafts of what a constraint forces."""
