"""Mirror-SD: the draft model goes on while the target verifies; and what that saves."""
